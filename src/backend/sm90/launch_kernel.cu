#include <cuda_runtime.h>

#include "backend/sm90/launch_kernel.hpp"
#include "gpu/cuda_status.hpp"

namespace flashrel::sm90 {

Status launch_kernel(const char* name, const void* kernel, const LaunchShape& shape, void* params, void* stream) {
  // Always the most: threads that launch the same kernel with other sizes must not take it from each other.
  FLASHREL_RETURN_IF_ERROR(gpu::cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes), "cudaFuncSetAttribute"));
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
