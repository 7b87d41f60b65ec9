#include "backend/sm90/kernel.cuh"

namespace flashrel::sm90 {
template const void* kernel_address<__half, 16>();
}
