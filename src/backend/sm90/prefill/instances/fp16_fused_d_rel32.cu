#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__half, FusedBias<4, 2>, 128>();
template const void* kernel_address<__half, FusedBias<8, 2>, 128>();
template const void* kernel_address<__half, FusedBias<16, 2>, 128>();
}  // namespace flashrel::sm90::prefill
