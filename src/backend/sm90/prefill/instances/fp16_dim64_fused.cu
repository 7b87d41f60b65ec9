#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__half, FusedBias<4, 1>, 64>();
template const void* kernel_address<__half, FusedBias<8, 1>, 64>();
template const void* kernel_address<__half, FusedBias<16, 1>, 64>();
}  // namespace flashrel::sm90::prefill
