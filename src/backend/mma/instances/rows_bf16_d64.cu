#include "backend/mma/kernel_rows.cuh"
#include "backend/mma/launch.cuh"

flashrel::Status flashrel::mma::rows_bf16_d64(const gpu::AttentionParams& params, const LaunchShape& launch) {
  using Shape = RowsShape<64>;
  return launch_kernel<attention_rows_kernel<__nv_bfloat16, Shape>, Shape>(params, launch);
}
