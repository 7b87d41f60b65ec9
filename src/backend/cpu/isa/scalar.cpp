// Plain C++ for any machine: groups of four floats that the compiler may or may not turn into vectors.
#include "backend/cpu/isa.hpp"
#include "backend/cpu/isa/exp2.hpp"

namespace flashrel::cpu {
namespace {

struct Simd {
  static constexpr int kLanes = 4;
  static constexpr int kGemmRows = 2, kGemmPanels = 1;
  static constexpr int kRowBlock = 16;
  struct V {
    float x[kLanes];
  };

  template <class F>
  static V each(F&& f) {
    V r;
    for (int i = 0; i < kLanes; ++i) r.x[i] = f(i);
    return r;
  }
  static V zero() { return set1(0.0f); }
  static V set1(float x) { return {{x, x, x, x}}; }
  static V load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static V load_unaligned(const float* p) { return load(p); }
  static void store(float* p, V v) {
    for (int i = 0; i < kLanes; ++i) p[i] = v.x[i];
  }
  static void store_unaligned(float* p, V v) { store(p, v); }
  static V add(V a, V b) {
    return each([&](int i) { return a.x[i] + b.x[i]; });
  }
  static V mul(V a, V b) {
    return each([&](int i) { return a.x[i] * b.x[i]; });
  }
  static V fma(V a, V b, V c) {
    return each([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
  }
  static V max(V a, V b) {
    return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
  }
  static bool any_greater(V a, V b) {
    bool any = false;
    for (int i = 0; i < kLanes; ++i) any |= a.x[i] > b.x[i];
    return any;
  }
  static float reduce_max(V v) { return max_of(max_of(v.x[0], v.x[1]), max_of(v.x[2], v.x[3])); }
  static float reduce_add(V v) { return (v.x[0] + v.x[1]) + (v.x[2] + v.x[3]); }
  static V reverse(V v) { return {{v.x[3], v.x[2], v.x[1], v.x[0]}}; }
  static V load_bf16(const std::uint16_t* p) {
    return each([&](int i) { return bf16_to_float(p[i]); });
  }
  static V load_fp16(const std::uint16_t* p) {
    return each([&](int i) { return fp16_to_float(p[i]); });
  }

  // 2^x for x <= 0; exactly 0 below 2^-126. The integer part goes into the exponent field.
  static float exp2_scalar(float x) {
    const float bounded = x < kExp2Least ? kExp2Least : x;
    const float shifted = bounded + kExp2Magic, f = bounded - (shifted - kExp2Magic);
    const float p = ((((kExp2[4] * f + kExp2[3]) * f + kExp2[2]) * f + kExp2[1]) * f + kExp2[0]) * f + 1.0f;
    const auto bits = __builtin_bit_cast(std::uint32_t, p) + (__builtin_bit_cast(std::uint32_t, shifted) << 23);
    return x < kExp2Least ? 0.0f : __builtin_bit_cast(float, bits);
  }
  static V exp2(V v) {
    return each([&](int i) { return exp2_scalar(v.x[i]); });
  }

  static void store_bf16(std::uint16_t* p, V v) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_bf16(v.x[i]);
  }
  static void store_fp16(std::uint16_t* p, V v) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_fp16(v.x[i]);
  }
  static void store_element(float* p, V v) { store(p, v); }

  // out[word][16] = rows[0..16)[word].
  static void transpose_words(const void* const* rows, int words, void* out) {
    for (int w = 0; w < words; ++w)
      for (int i = 0; i < kPanel; ++i) static_cast<float*>(out)[w * kPanel + i] = static_cast<const float*>(rows[i])[w];
  }
};

double float_matrix_loop(long iterations) {
  float sum[8] = {}, a = 1.0f, b = 0.5f;
  for (long i = 0; i < iterations; ++i) {
    asm volatile("" : "+m"(a), "+m"(b));
    for (float& s : sum) s += a * b;
  }
  for (float& s : sum) asm volatile("" : "+m"(s));
  return static_cast<double>(iterations) * 8 * 2;
}

float float_read_loop(const float* data, std::size_t n) {
  float sum[16] = {};
  for (std::size_t i = 0; i < n; i += 16)
    for (std::size_t j = 0; j < 16; ++j) sum[j] += data[i + j];
  float total = 0;
  for (float s : sum) total += s;
  return total;
}

}  // namespace
}  // namespace flashrel::cpu

#include "backend/cpu/kernel.hpp"

namespace flashrel::cpu {

extern const IsaKernels kScalarKernels;
const IsaKernels kScalarKernels = {
    .name = "scalar",
    .run_item = &run_item<FloatMatrix>,
    .matrix_loop = &float_matrix_loop,
    .read_loop = &float_read_loop,
};

}  // namespace flashrel::cpu
