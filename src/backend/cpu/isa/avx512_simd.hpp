// Vectors of 16 floats for the AVX-512 units (avx512, avx512_bf16, amx_bf16).
#pragma once

#include <immintrin.h>

#include "backend/cpu/isa.hpp"
#include "backend/cpu/isa/exp2.hpp"

namespace flashrel::cpu {
namespace {

struct Simd {
  using V = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kGemmRows = 12, kGemmPanels = 2;  // 24 sums + 2 of B + 1 of A in 32 registers
  static constexpr int kRowBlock = 24;

  static V zero() { return _mm512_setzero_ps(); }
  static V set1(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_load_ps(p); }
  static V load_unaligned(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V x) { _mm512_store_ps(p, x); }
  static void store_unaligned(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static bool any_greater(V a, V b) { return greater_mask(a, b) != 0; }
  static float reduce_max(V x) { return _mm512_reduce_max_ps(x); }
  static float reduce_add(V x) { return _mm512_reduce_add_ps(x); }
  static V reverse(V x) {
    return _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), x);
  }

  static __m512i widen(const std::uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V load_bf16(const std::uint16_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(widen(p), 16)); }
  // Elements `half` (0 or 1) of 16 interleaved pairs.
  static V load_pair_half(const std::uint16_t* p, int half) {
    const __m512i pairs = _mm512_load_si512(p);
    return _mm512_castsi512_ps(half ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(pairs, 16));
  }
  static unsigned greater_mask(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static V load_fp16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  // 2^x for x <= 0; 0 for -inf. A polynomial of the fraction f in [0, 1), scaled by 2^floor(x). For x = -inf vreduce gives
  // f = 0 and vscalef 0 (Intel SDM, special cases of both).
  static V exp2(V x) {
    const V f = _mm512_reduce_ps(x, 0x09);  // x - floor(x), no exceptions
    V p = fma(set1(kExp2Floor[4]), f, set1(kExp2Floor[3]));
    p = fma(p, f, set1(kExp2Floor[2]));
    p = fma(p, f, set1(kExp2Floor[1]));
    p = fma(p, f, set1(kExp2Floor[0]));
    p = fma(p, f, set1(1.0f));
    return _mm512_scalef_ps(p, x);
  }
  static float exp2_scalar(float x) { return _mm512_cvtss_f32(exp2(set1(x))); }

  static void store_bf16(std::uint16_t* p, V x) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i out = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16)));
#endif
  }
  static void store_fp16(std::uint16_t* p, V x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_element(float* p, V x) { store(p, x); }
  static void store_element(std::uint16_t* p, V x) { store_bf16(p, x); }

  // out[word][16] = rows[0..16)[word], 16 words at a time.
  static void transpose_words(const void* const* rows, int words, void* out) {
    auto* to = static_cast<float*>(out);
    for (int w = 0; w < words; w += 16) {
      __m512 r[16], t[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(static_cast<const float*>(rows[i]) + w);
#pragma GCC unroll 8
      for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
      }
      // r[4g + c] holds, in 128-bit lane l, words 4l + c of rows 4g .. 4g + 3.
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const __m512 low01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), high01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        const __m512 low23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        const __m512 high23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        _mm512_storeu_ps(to + (w + c) * 16, _mm512_shuffle_f32x4(low01, low23, 0x88));
        _mm512_storeu_ps(to + (w + 4 + c) * 16, _mm512_shuffle_f32x4(high01, high23, 0x88));
        _mm512_storeu_ps(to + (w + 8 + c) * 16, _mm512_shuffle_f32x4(low01, low23, 0xdd));
        _mm512_storeu_ps(to + (w + 12 + c) * 16, _mm512_shuffle_f32x4(high01, high23, 0xdd));
      }
    }
  }

  // out[i] = {even[i], odd[i]} for 16 columns.
  static void interleave_16(const std::uint16_t* even, const std::uint16_t* odd, std::uint16_t* out) {
    _mm512_storeu_si512(out, _mm512_or_si512(widen(even), _mm512_slli_epi32(widen(odd), 16)));
  }
};

// Multiply-add loop on registers: the float32 ceiling.
inline double float_matrix_loop(long iterations) {
  __m512 sum[12];
  for (auto& s : sum) s = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(0.5f);
  for (long i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 12
    for (auto& s : sum) s = _mm512_fmadd_ps(a, b, s);
  }
  for (auto& s : sum) asm volatile("" : "+v"(s));
  return static_cast<double>(iterations) * 12 * 16 * 2;
}

inline float float_read_loop(const float* data, std::size_t n) {
  __m512 sum[4];
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (std::size_t i = 0; i < n; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = _mm512_add_ps(sum[j], _mm512_loadu_ps(data + i + static_cast<std::size_t>(j) * 16));
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

}  // namespace
}  // namespace flashrel::cpu
