// AVX512-BF16: bf16 pairs with float32 sums (vdpbf16ps), for bf16 tensors.
#include "backend/cpu/isa/avx512_simd.hpp"
#include "backend/cpu/kernel.hpp"

namespace flashrel::cpu {
namespace {

struct Bf16Dot {
  using Element = std::uint16_t;
  using Operand = __m512bh;
  static constexpr int kDepth = 2;
  static Operand load(const std::uint16_t* p) { return reinterpret_cast<Operand>(_mm512_loadu_si512(p)); }
  static Operand broadcast(const std::uint16_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return reinterpret_cast<Operand>(_mm512_set1_epi32(pair));
  }
  static __m512 multiply_add(Operand a, Operand b, __m512 c) { return _mm512_dpbf16_ps(c, a, b); }
};

double bf16_matrix_loop(long iterations) {
  __m512 sum[12];
  for (auto& s : sum) s = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi32(0x3f803f80), b = a;
  for (long i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  for (auto& s : sum) asm volatile("" : "+v"(s));
  return static_cast<double>(iterations) * 12 * 32 * 2;
}

}  // namespace

extern const IsaKernels kAvx512Bf16Kernels;
const IsaKernels kAvx512Bf16Kernels = {
    .name = "avx512_bf16",
    .bf16_operands = true,
    .run_item = &run_item<VectorMatrix<Bf16Dot>>,
    .matrix_loop = &bf16_matrix_loop,
    .read_loop = &float_read_loop,
};

}  // namespace flashrel::cpu
