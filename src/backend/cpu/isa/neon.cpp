// NEON (AArch64): float32 arithmetic for every dtype.
#include <arm_neon.h>

#include "backend/cpu/isa.hpp"
#include "backend/cpu/isa/exp2.hpp"

namespace flashrel::cpu {
namespace {

struct Simd {
  using V = float32x4_t;
  static constexpr int kLanes = 4;
  static constexpr int kGemmRows = 6, kGemmPanels = 1;  // 24 sums + 4 of B + 1 of A in 32 registers
  static constexpr int kRowBlock = 24;

  static V zero() { return vdupq_n_f32(0.0f); }
  static V set1(float x) { return vdupq_n_f32(x); }
  static V load(const float* p) { return vld1q_f32(p); }
  static V load_unaligned(const float* p) { return vld1q_f32(p); }
  static void store(float* p, V x) { vst1q_f32(p, x); }
  static void store_unaligned(float* p, V x) { vst1q_f32(p, x); }
  static V add(V a, V b) { return vaddq_f32(a, b); }
  static V mul(V a, V b) { return vmulq_f32(a, b); }
  static V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  static V max(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static bool any_greater(V a, V b) { return vmaxvq_u32(vcgtq_f32(a, b)) != 0; }
  static float reduce_max(V x) { return vmaxvq_f32(x); }
  static float reduce_add(V x) { return vaddvq_f32(x); }
  static V reverse(V x) {
    const V r = vrev64q_f32(x);
    return vextq_f32(r, r, 2);
  }
  static V load_bf16(const std::uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static V load_fp16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

  // 2^x for x <= 0; exactly 0 below 2^-126. The integer part goes into the exponent field.
  static V exp2(V x) {
    const uint32x4_t tiny = vcltq_f32(x, set1(kExp2Least));
    const V bounded = vbslq_f32(tiny, set1(kExp2Least), x);
    const V shifted = vaddq_f32(bounded, set1(kExp2Magic)), f = vsubq_f32(bounded, vsubq_f32(shifted, set1(kExp2Magic)));
    V p = fma(set1(kExp2[4]), f, set1(kExp2[3]));
    p = fma(p, f, set1(kExp2[2]));
    p = fma(p, f, set1(kExp2[1]));
    p = fma(p, f, set1(kExp2[0]));
    p = fma(p, f, set1(1.0f));
    const uint32x4_t bits = vaddq_u32(vreinterpretq_u32_f32(p), vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23));
    return vreinterpretq_f32_u32(vbicq_u32(bits, tiny));
  }
  static float exp2_scalar(float x) { return vgetq_lane_f32(exp2(set1(x)), 0); }

  static void store_bf16(std::uint16_t* p, V x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
  }
  static void store_fp16(std::uint16_t* p, V x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
  static void store_element(float* p, V x) { store(p, x); }

  // out[word][16] = rows[0..16)[word], 4 words of 4 rows at a time.
  static void transpose_words(const void* const* rows, int words, void* out) {
    for (int quarter = 0; quarter < kPanel; quarter += 4)
      for (int w = 0; w < words; w += 4) {
        V r[4];
        for (int i = 0; i < 4; ++i) r[i] = vld1q_f32(static_cast<const float*>(rows[quarter + i]) + w);
        const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
        float* to = static_cast<float*>(out) + w * kPanel + quarter;
        vst1q_f32(to, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
        vst1q_f32(to + kPanel, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
        vst1q_f32(to + 2 * kPanel, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
        vst1q_f32(to + 3 * kPanel, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
      }
  }
};

double float_matrix_loop(long iterations) {
  float32x4_t sum[12];
  for (auto& s : sum) s = vdupq_n_f32(0.0f);
  float32x4_t a = vdupq_n_f32(1.0f), b = vdupq_n_f32(0.5f);
  for (long i = 0; i < iterations; ++i) {
    asm volatile("" : "+w"(a), "+w"(b));
#pragma GCC unroll 12
    for (auto& s : sum) s = vfmaq_f32(s, a, b);
  }
  for (auto& s : sum) asm volatile("" : "+w"(s));
  return static_cast<double>(iterations) * 12 * 4 * 2;
}

float float_read_loop(const float* data, std::size_t n) {
  float32x4_t sum[16];
  for (auto& s : sum) s = vdupq_n_f32(0.0f);
  for (std::size_t i = 0; i < n; i += 64)
#pragma GCC unroll 16
    for (std::size_t j = 0; j < 16; ++j) sum[j] = vaddq_f32(sum[j], vld1q_f32(data + i + j * 4));
  for (int j = 1; j < 16; ++j) sum[0] = vaddq_f32(sum[0], sum[j]);
  return vaddvq_f32(sum[0]);
}

}  // namespace
}  // namespace flashrel::cpu

#include "backend/cpu/kernel.hpp"

namespace flashrel::cpu {

extern const IsaKernels kNeonKernels;
const IsaKernels kNeonKernels = {
    .name = "neon",
    .run_item = &run_item<FloatMatrix>,
    .matrix_loop = &float_matrix_loop,
    .read_loop = &float_read_loop,
};

}  // namespace flashrel::cpu
