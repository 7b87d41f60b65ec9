#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__nv_bfloat16, NoBias, 128>();
template const void* kernel_address<__nv_bfloat16, LogitsBias<__nv_bfloat16>, 128>();
template const void* kernel_address<__nv_bfloat16, LogitsBias<__half>, 128>();
template const void* kernel_address<__nv_bfloat16, LogitsBias<float>, 128>();
}  // namespace flashrel::sm90::prefill
