// Launch of one instance: shared-memory size by route, and the per-device permission to use more than 48 KiB.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "backend/mma/instances.hpp"
#include "backend/mma/shapes.hpp"
#include "gpu/cuda_status.hpp"

namespace flashrel::mma {

inline constexpr int kMaxDevices = 64;

// Each kernel keeps, per device, the largest dynamic shared memory it was allowed so far.
template <auto kKernel>
Status allow_smem(int bytes) {
  static std::atomic<int> allowed[kMaxDevices];
  int device = 0;
  FLASHREL_RETURN_IF_ERROR(gpu::cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  if (device < kMaxDevices && allowed[device].load(std::memory_order_relaxed) >= bytes) return {};
  FLASHREL_RETURN_IF_ERROR(gpu::cuda_status(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                                            "cudaFuncSetAttribute"));
  if (device < kMaxDevices) allowed[device].store(bytes, std::memory_order_relaxed);
  return {};
}

template <auto kKernel, class Shape>
Status launch_kernel(const gpu::AttentionParams& params, const LaunchShape& launch) {
  const std::size_t bytes = Shape::kExtraAt + extra_bytes<Shape>(params.bias.route, launch.d_rel, params.bias.logits_dtype);
  FLASHREL_RETURN_IF_ERROR(allow_smem<kKernel>(static_cast<int>(bytes)));
  kKernel<<<launch.n_workers, Shape::kThreads, bytes, static_cast<cudaStream_t>(launch.stream)>>>(params);
  return gpu::launch_status("mma attention kernel");
}

}  // namespace flashrel::mma
