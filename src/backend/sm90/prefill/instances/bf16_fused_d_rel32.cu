#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__nv_bfloat16, FusedBias<4, 2>, 128>();
template const void* kernel_address<__nv_bfloat16, FusedBias<8, 2>, 128>();
template const void* kernel_address<__nv_bfloat16, FusedBias<16, 2>, 128>();
}  // namespace flashrel::sm90::prefill
