// Warpgroup matrix instructions (sm_90a) with both operands in shared memory: d (64 x kN) = A (64 x 16) * B (16 x kN), plus d
// when `accumulate`. Order and accumulator layout as in wgmma.cuh: warp i owns rows 16 i ... 16 i + 15, d[4 b + r] is register
// r of its 16 x 8 block b. Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" and "Matrix descriptor".
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/wgmma.cuh"

namespace flashrel::gpu {

// Descriptor of core matrices (8 rows of 16 bytes each) without swizzle.
__device__ __forceinline__ std::uint64_t wgmma_plain_descriptor(std::uint32_t smem, int leading_bytes, int stride_bytes) {
  return static_cast<std::uint64_t>((smem & 0x3ffffu) >> 4) | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32;
}

#define FLASHREL_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FLASHREL_OPERANDS_8 FLASHREL_D4(0)
#define FLASHREL_OPERANDS_16 FLASHREL_OPERANDS_8, FLASHREL_D4(4)
#define FLASHREL_OPERANDS_32 FLASHREL_OPERANDS_16, FLASHREL_D4(8), FLASHREL_D4(12)
#define FLASHREL_OPERANDS_40 FLASHREL_OPERANDS_32, FLASHREL_D4(16)
#define FLASHREL_OPERANDS_64 FLASHREL_OPERANDS_40, FLASHREL_D4(20), FLASHREL_D4(24), FLASHREL_D4(28)
#define FLASHREL_OPERANDS_72 FLASHREL_OPERANDS_64, FLASHREL_D4(32)
#define FLASHREL_TEXT_8 "%0, %1, %2, %3"
#define FLASHREL_TEXT_16 FLASHREL_TEXT_8 ", %4, %5, %6, %7"
#define FLASHREL_TEXT_32 FLASHREL_TEXT_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHREL_TEXT_40 FLASHREL_TEXT_32 ", %16, %17, %18, %19"
#define FLASHREL_TEXT_64 FLASHREL_TEXT_40 ", %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHREL_TEXT_72 FLASHREL_TEXT_64 ", %32, %33, %34, %35"

// a, b, c: numbers of the operands after d. major: 0 = k is contiguous in both operands, 1 = rows of A, columns of B are.
#define FLASHREL_WGMMA(n, a, b, c, type, major)                                                                           \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #c ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" FLASHREL_TEXT_##n "}, %" #a ", %" #b ", p, 1, 1, " major ", " major "; }"                             \
               : FLASHREL_OPERANDS_##n                                                                                    \
               : "l"(desc_a), "l"(desc_b), "r"(static_cast<int>(accumulate)))
#define FLASHREL_WGMMA_TYPES(n, a, b, c)            \
  if constexpr (std::is_same_v<T, __nv_bfloat16>) { \
    if constexpr (kMajor == BMajor::kK)             \
      FLASHREL_WGMMA(n, a, b, c, "bf16", "0");      \
    else                                            \
      FLASHREL_WGMMA(n, a, b, c, "bf16", "1");      \
  } else {                                          \
    static_assert(std::is_same_v<T, __half>);       \
    if constexpr (kMajor == BMajor::kK)             \
      FLASHREL_WGMMA(n, a, b, c, "f16", "0");       \
    else                                            \
      FLASHREL_WGMMA(n, a, b, c, "f16", "1");       \
  }

// kMajor: kK = both operands have k contiguous; kN = A has its rows, B its columns contiguous.
template <class T, BMajor kMajor, int kN>
__device__ __forceinline__ void wgmma_64xNx16(float (&d)[kN / 2], std::uint64_t desc_a, std::uint64_t desc_b, bool accumulate) {
  if constexpr (kN == 8) {
    FLASHREL_WGMMA_TYPES(8, 4, 5, 6)
  } else if constexpr (kN == 16) {
    FLASHREL_WGMMA_TYPES(16, 8, 9, 10)
  } else if constexpr (kN == 32) {
    FLASHREL_WGMMA_TYPES(32, 16, 17, 18)
  } else if constexpr (kN == 40) {
    FLASHREL_WGMMA_TYPES(40, 20, 21, 22)
  } else if constexpr (kN == 64) {
    FLASHREL_WGMMA_TYPES(64, 32, 33, 34)
  } else {
    static_assert(kN == 72);
    FLASHREL_WGMMA_TYPES(72, 36, 37, 38)
  }
}

#undef FLASHREL_WGMMA_TYPES
#undef FLASHREL_WGMMA
#undef FLASHREL_TEXT_72
#undef FLASHREL_TEXT_64
#undef FLASHREL_TEXT_40
#undef FLASHREL_TEXT_32
#undef FLASHREL_TEXT_16
#undef FLASHREL_TEXT_8
#undef FLASHREL_OPERANDS_72
#undef FLASHREL_OPERANDS_64
#undef FLASHREL_OPERANDS_40
#undef FLASHREL_OPERANDS_32
#undef FLASHREL_OPERANDS_16
#undef FLASHREL_OPERANDS_8
#undef FLASHREL_D4

}  // namespace flashrel::gpu
