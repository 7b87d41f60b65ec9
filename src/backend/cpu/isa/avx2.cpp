// AVX2 with FMA and F16C: float32 arithmetic for every dtype.
#include <immintrin.h>

#include "backend/cpu/isa.hpp"
#include "backend/cpu/isa/exp2.hpp"

namespace flashrel::cpu {
namespace {

struct Simd {
  using V = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kGemmRows = 6, kGemmPanels = 1;  // 12 sums + 2 of B + 1 of A in 16 registers
  static constexpr int kRowBlock = 24;

  static V zero() { return _mm256_setzero_ps(); }
  static V set1(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_load_ps(p); }
  static V load_unaligned(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V x) { _mm256_store_ps(p, x); }
  static void store_unaligned(float* p, V x) { _mm256_storeu_ps(p, x); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static bool any_greater(V a, V b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  static float reduce_max(V x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  static float reduce_add(V x) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  static V reverse(V x) { return _mm256_permutevar8x32_ps(x, _mm256_set_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }

  static V load_bf16(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static V load_fp16(const std::uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

  // 2^x for x <= 0; exactly 0 below 2^-126. The integer part goes into the exponent field.
  static V exp2(V x) {
    const V magic = set1(kExp2Magic), shifted = _mm256_add_ps(_mm256_max_ps(set1(kExp2Least), x), magic);
    const V f = _mm256_sub_ps(_mm256_max_ps(set1(kExp2Least), x), _mm256_sub_ps(shifted, magic));
    V p = fma(set1(kExp2[4]), f, set1(kExp2[3]));
    p = fma(p, f, set1(kExp2[2]));
    p = fma(p, f, set1(kExp2[1]));
    p = fma(p, f, set1(kExp2[0]));
    p = fma(p, f, set1(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    const V result = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_and_ps(result, _mm256_cmp_ps(x, set1(kExp2Least), _CMP_NLT_UQ));
  }
  static float exp2_scalar(float x) { return _mm256_cvtss_f32(exp2(set1(x))); }

  static void store_bf16(std::uint16_t* p, V x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i out = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store_fp16(std::uint16_t* p, V x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_element(float* p, V x) { store(p, x); }

  // out[word][16] = rows[0..16)[word], 8 words of 8 rows at a time.
  static void transpose_words(const void* const* rows, int words, void* out) {
    for (int half = 0; half < 16; half += 8)
      for (int w = 0; w < words; w += 8) {
        auto* to = static_cast<float*>(out) + w * 16 + half;
        __m256 r[8], t[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(static_cast<const float*>(rows[half + i]) + w);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
          t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
          t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4) {
          r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
          r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
          r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
          r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          _mm256_storeu_ps(to + c * 16, _mm256_permute2f128_ps(r[c], r[4 + c], 0x20));
          _mm256_storeu_ps(to + (4 + c) * 16, _mm256_permute2f128_ps(r[c], r[4 + c], 0x31));
        }
      }
  }
};

inline double float_matrix_loop(long iterations) {
  __m256 sum[12];
  for (auto& s : sum) s = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(0.5f);
  for (long i = 0; i < iterations; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm256_fmadd_ps(a, b, s);
  }
  for (auto& s : sum) asm volatile("" : "+x"(s));
  return static_cast<double>(iterations) * 12 * 8 * 2;
}

inline float float_read_loop(const float* data, std::size_t n) {
  __m256 sum[8];
  for (auto& s : sum) s = _mm256_setzero_ps();
  for (std::size_t i = 0; i < n; i += 64)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm256_add_ps(sum[j], _mm256_loadu_ps(data + i + static_cast<std::size_t>(j) * 8));
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_ps(sum[0], sum[j]);
  return Simd::reduce_add(sum[0]);
}

}  // namespace
}  // namespace flashrel::cpu

#include "backend/cpu/kernel.hpp"

namespace flashrel::cpu {

extern const IsaKernels kAvx2Kernels;
const IsaKernels kAvx2Kernels = {
    .name = "avx2",
    .run_item = &run_item<FloatMatrix>,
    .matrix_loop = &float_matrix_loop,
    .read_loop = &float_read_loop,
};

}  // namespace flashrel::cpu
