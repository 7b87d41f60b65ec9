#include "backend/sm90/prefill/kernel.cuh"

namespace flashrel::sm90::prefill {
template const void* kernel_address<__nv_bfloat16, NoBias, 64>();
template const void* kernel_address<__nv_bfloat16, LogitsBias<__nv_bfloat16>, 64>();
template const void* kernel_address<__nv_bfloat16, LogitsBias<float>, 64>();
}  // namespace flashrel::sm90::prefill
