// The compiled kernels, one file each under instances/; a missing one is a link error.
#pragma once

#include "base/status.hpp"
#include "gpu/params.hpp"

namespace flashrel::mma {

struct LaunchShape {
  int n_workers = 1;
  int d_rel = 0;
  void* stream = nullptr;
};

using LaunchKernel = Status (*)(const gpu::AttentionParams&, const LaunchShape&);

// Many rows, by element type and padded head_dim.
Status rows_bf16_d64(const gpu::AttentionParams&, const LaunchShape&);
Status rows_bf16_d128(const gpu::AttentionParams&, const LaunchShape&);
Status rows_bf16_d256(const gpu::AttentionParams&, const LaunchShape&);
Status rows_fp16_d64(const gpu::AttentionParams&, const LaunchShape&);
Status rows_fp16_d128(const gpu::AttentionParams&, const LaunchShape&);
Status rows_fp16_d256(const gpu::AttentionParams&, const LaunchShape&);
// Few rows.
Status keys_bf16_d128(const gpu::AttentionParams&, const LaunchShape&);
Status keys_fp16_d128(const gpu::AttentionParams&, const LaunchShape&);

}  // namespace flashrel::mma
