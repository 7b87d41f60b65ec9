#include "backend/mma/kernel_keys.cuh"
#include "backend/mma/launch.cuh"

flashrel::Status flashrel::mma::keys_fp16_d128(const gpu::AttentionParams& params, const LaunchShape& launch) {
  using Shape = KeysShape<128>;
  return launch_kernel<attention_keys_kernel<__half, Shape>, Shape>(params, launch);
}
