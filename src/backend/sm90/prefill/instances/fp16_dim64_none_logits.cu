#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__half, NoBias, 64>();
template const void* kernel_address<__half, LogitsBias<__half>, 64>();
template const void* kernel_address<__half, LogitsBias<float>, 64>();
}  // namespace flashrel::sm90::prefill
