// Small sums of the softmax kernels: the hardware's power of two, and reductions over the four lanes that share a row of an
// accumulator fragment (index/frag.hpp).
#pragma once

#include "gpu/mma_sync.cuh"

namespace flashrel::gpu {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

}  // namespace flashrel::gpu
