#include "backend/sm90/decode/kernel.cuh"

namespace flashrel::sm90::decode {
template const void* kernel_address<__nv_bfloat16, 8, Bias::kFused>();
}
