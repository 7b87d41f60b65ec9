#include <cuda_runtime.h>

#include <mutex>
#include <set>
#include <utility>

#include "backend/sm90/launch_kernel.hpp"
#include "gpu/cuda_status.hpp"

namespace flashrel::sm90 {
namespace {

// Once a kernel and device: asked of CUDA in every call it costs 0.4 us of host time. Always the most, so that threads which
// launch the same kernel with other sizes do not take it from each other.
Status allow_shared_memory(const void* kernel) {
  int device = 0;
  FLASHREL_RETURN_IF_ERROR(gpu::cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  const std::lock_guard lock(mutex);
  if (allowed.contains({kernel, device})) return {};
  FLASHREL_RETURN_IF_ERROR(gpu::cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes), "cudaFuncSetAttribute"));
  allowed.insert({kernel, device});
  return {};
}

}  // namespace

Status launch_kernel(const char* name, const void* kernel, const LaunchShape& shape, void* params, void* stream) {
  FLASHREL_RETURN_IF_ERROR(allow_shared_memory(kernel));
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.n_blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.n_threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = shape.overlaps ? 1 : 0;
  void* arguments[] = {params};
  return gpu::cuda_status(cudaLaunchKernelExC(&config, kernel, arguments), name);
}

}  // namespace flashrel::sm90
