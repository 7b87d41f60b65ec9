#include "backend/sm90/kernel.cuh"

namespace flashrel::sm90 {
template const void* kernel_address<__nv_bfloat16, 16>();
}
