// CUDA runtime errors as Status values.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.hpp"

namespace flashrel::gpu {

inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

// The launch error of the kernel just enqueued.
inline Status launch_status(const char* kernel) { return cuda_status(cudaGetLastError(), kernel); }

}  // namespace flashrel::gpu
