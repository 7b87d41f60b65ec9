#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__half, NoBias, 128>();
template const void* kernel_address<__half, LogitsBias<__nv_bfloat16>, 128>();
template const void* kernel_address<__half, LogitsBias<__half>, 128>();
template const void* kernel_address<__half, LogitsBias<float>, 128>();
}  // namespace flashrel::sm90::prefill
