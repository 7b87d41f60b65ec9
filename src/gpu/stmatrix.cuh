// 8 x 8 matrices of 16-bit elements from registers to shared memory (sm_90). Lane l holds row l / 4, columns l % 4 * 2 + {0, 1}
// of each; lane 8 m + i gives the address of row i of matrix m (16-byte aligned).
// Source: PTX ISA, "stmatrix".
#pragma once

#include <cstdint>

namespace flashrel::gpu {

__device__ __forceinline__ void stmatrix_x2(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace flashrel::gpu
