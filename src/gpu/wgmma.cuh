// Warpgroup matrix instructions (sm_90a): 64 x N x 16 products with A in registers and B in shared memory.
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" and "Matrix descriptor".
//
// Registers. Warp i of the warpgroup owns rows 16 i ... 16 i + 15. Its accumulator is N / 8 blocks of 16 x 8, each laid out as
// C of mma.sync.m16n8k16 (index/frag.hpp): d[4 b + r] is register r of block b. A is one A operand of that instruction.
// Order. Registers that a wgmma reads or writes may be touched only between wgmma_wait and the next wgmma_fence.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace flashrel::gpu {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending of the newest committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptor of a tile in the 128-byte swizzle: address, leading and stride byte offsets in units of 16 bytes.
__device__ __forceinline__ std::uint64_t wgmma_descriptor(std::uint32_t smem, int leading_bytes, int stride_bytes) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return static_cast<std::uint64_t>((smem & 0x3ffffu) >> 4) | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | kSwizzle128;
}

#define FLASHREL_WGMMA_D_64                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHREL_WGMMA_D_96 \
  FLASHREL_WGMMA_D_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHREL_WGMMA_D_128 \
  FLASHREL_WGMMA_D_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHREL_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FLASHREL_F16(i) FLASHREL_F4(i), FLASHREL_F4(i + 4), FLASHREL_F4(i + 8), FLASHREL_F4(i + 12)
#define FLASHREL_WGMMA_OPERANDS_64 FLASHREL_F16(0), FLASHREL_F16(16)
#define FLASHREL_WGMMA_OPERANDS_96 FLASHREL_WGMMA_OPERANDS_64, FLASHREL_F16(32)
#define FLASHREL_WGMMA_OPERANDS_128 FLASHREL_WGMMA_OPERANDS_96, FLASHREL_F16(48)
// a_text: text of the operands of A; b_at, c_at: numbers of the two after them. tnsp: 0 = B is [n][k] (k contiguous), 1 = B is
// [k][n] (n contiguous).
#define FLASHREL_WGMMA(n, a_text, b_at, c_at, type, tnsp)                                                                    \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #c_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" FLASHREL_WGMMA_D_##n "}, {" a_text "}, %" #b_at ", p, 1, 1, " tnsp "; }"                                 \
               : FLASHREL_WGMMA_OPERANDS_##n                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
#define FLASHREL_WGMMA_TYPES(n, a_text, b_at, c_at)       \
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {       \
    if constexpr (kMajor == BMajor::kK)                   \
      FLASHREL_WGMMA(n, a_text, b_at, c_at, "bf16", "0"); \
    else                                                  \
      FLASHREL_WGMMA(n, a_text, b_at, c_at, "bf16", "1"); \
  } else {                                                \
    static_assert(std::is_same_v<T, __half>);             \
    if constexpr (kMajor == BMajor::kK)                   \
      FLASHREL_WGMMA(n, a_text, b_at, c_at, "f16", "0");  \
    else                                                  \
      FLASHREL_WGMMA(n, a_text, b_at, c_at, "f16", "1");  \
  }

enum class BMajor { kK, kN };  // which index of B is contiguous

// d (64 x kN) = a (64 x 16) * b (16 x kN), plus d when `accumulate`.
template <class T, BMajor kMajor, int kN>
__device__ __forceinline__ void wgmma_64xNx16(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                              bool accumulate) {
  if constexpr (kN == 64) {
    FLASHREL_WGMMA_TYPES(64, "%32, %33, %34, %35", 36, 37)
  } else if constexpr (kN == 96) {
    FLASHREL_WGMMA_TYPES(96, "%48, %49, %50, %51", 52, 53)
  } else {
    static_assert(kN == 128);
    FLASHREL_WGMMA_TYPES(128, "%64, %65, %66, %67", 68, 69)
  }
}

#undef FLASHREL_WGMMA_TYPES
#undef FLASHREL_WGMMA
#undef FLASHREL_WGMMA_OPERANDS_128
#undef FLASHREL_WGMMA_OPERANDS_96
#undef FLASHREL_WGMMA_OPERANDS_64
#undef FLASHREL_F16
#undef FLASHREL_F4
#undef FLASHREL_WGMMA_D_128
#undef FLASHREL_WGMMA_D_96
#undef FLASHREL_WGMMA_D_64

}  // namespace flashrel::gpu
