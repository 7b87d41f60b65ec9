// AVX-512 F, BW, VL, DQ: float32 arithmetic for every dtype.
#include "backend/cpu/isa/avx512_simd.hpp"
#include "backend/cpu/kernel.hpp"

namespace flashrel::cpu {

extern const IsaKernels kAvx512Kernels;
const IsaKernels kAvx512Kernels = {
    .name = "avx512",
    .run_item = &run_item<FloatMatrix>,
    .matrix_loop = &float_matrix_loop,
    .read_loop = &float_read_loop,
};

}  // namespace flashrel::cpu
