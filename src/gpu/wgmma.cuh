// Warpgroup matrix instructions (sm_90a): one 64 x 128 x 16 product with A in registers and B in shared memory.
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" and "Matrix descriptor".
//
// Registers. Warp i of the warpgroup owns rows 16 i ... 16 i + 15. Its accumulator is sixteen 16 x 8 blocks, each laid out as
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

#define FLASHREL_WGMMA_D                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHREL_WGMMA_D_OPERANDS                                                                                          \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),  \
      "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), \
      "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), \
      "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), \
      "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), \
      "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
// tnsp: 0 = B is [n][k] (k contiguous), 1 = B is [k][n] (n contiguous).
#define FLASHREL_WGMMA_64x128x16(type, tnsp)                                                                       \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
               " {" FLASHREL_WGMMA_D "}, {%64, %65, %66, %67}, %68, p, 1, 1, " tnsp "; }"                          \
               : FLASHREL_WGMMA_D_OPERANDS                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))

enum class BMajor { kK, kN };  // which index of B is contiguous

// d (64 x 128) = a (64 x 16) * b (16 x 128), plus d when `accumulate`.
template <class T, BMajor kMajor>
__device__ __forceinline__ void wgmma_64x128x16(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kMajor == BMajor::kK)
      FLASHREL_WGMMA_64x128x16("bf16", "0");
    else
      FLASHREL_WGMMA_64x128x16("bf16", "1");
  } else {
    static_assert(std::is_same_v<T, __half>);
    if constexpr (kMajor == BMajor::kK)
      FLASHREL_WGMMA_64x128x16("f16", "0");
    else
      FLASHREL_WGMMA_64x128x16("f16", "1");
  }
}

#undef FLASHREL_WGMMA_64x128x16
#undef FLASHREL_WGMMA_D_OPERANDS
#undef FLASHREL_WGMMA_D

}  // namespace flashrel::gpu
