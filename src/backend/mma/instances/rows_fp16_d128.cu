#include "backend/mma/kernel_rows.cuh"
#include "backend/mma/launch.cuh"

flashrel::Status flashrel::mma::rows_fp16_d128(const gpu::AttentionParams& params, const LaunchShape& launch) {
  using Shape = RowsShape<128>;
  return launch_kernel<attention_rows_kernel<__half, Shape>, Shape>(params, launch);
}
