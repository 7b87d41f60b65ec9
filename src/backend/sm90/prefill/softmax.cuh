// Online softmax of one lane's two rows: a = lane / 4 and b = lane / 4 + 8 of the warp's 16 (score registers 4 b + {0, 1} and
// 4 b + {2, 3} of key block b). Scores are in units of 1 / softmax_scale.
#pragma once

#include "gpu/element.cuh"
#include "index/softmax_state.hpp"

namespace flashrel::sm90::prefill {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Keys of the tile that one row sees: columns [begin, end), shifted to this lane's first column.
struct RowKeys {
  int begin, end;
};

// Hidden scores become -inf, whatever they were.
__device__ __forceinline__ void mask_scores(float (&s)[64], RowKeys a, RowKeys b) {
#pragma unroll
  for (int block = 0; block < 16; ++block)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int col = block * 8 + i;
      if (col < a.begin || col >= a.end) s[block * 4 + i] = kEmptyLse;
      if (col < b.begin || col >= b.end) s[block * 4 + 2 + i] = kEmptyLse;
    }
}

struct SoftmaxRows {
  // The exponent's reference is the true maximum so far: a dominant key then has probability 1, which no rounding hurts.
  float max_a = 0, max_b = 0;    // -inf while a row has seen nothing
  float sum_a = 0, sum_b = 0;    // this lane's columns only; the rows' sums are quad_sum of them
  float keep_a = 1, keep_b = 1;  // what the output so far must be multiplied by, if `grew`
  bool grew = false;             // in any row of the warp

  // Turns scores into probabilities relative to the reference. kFirst: there is no state yet. kMasked: a row may see
  // nothing in this tile; its probabilities are 0 then, even while its reference is still -inf.
  template <bool kFirst, bool kMasked>
  __device__ __forceinline__ void update(float (&s)[64], float scale_log2) {
    float a = s[0], b = s[2];
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      a = fmaxf(a, fmaxf(s[i], s[i + 1]));
      b = fmaxf(b, fmaxf(s[i + 2], s[i + 3]));
    }
    a = quad_max(a), b = quad_max(b);
    if constexpr (kFirst) {
      max_a = a, max_b = b;
    } else {
      follow(a, b, scale_log2);
    }
    float shift_a = max_a * scale_log2, shift_b = max_b * scale_log2;
    if constexpr (kMasked) {
      shift_a = a == kEmptyLse ? 0.0f : shift_a;
      shift_b = b == kEmptyLse ? 0.0f : shift_b;
    }
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      s[i] = exp2_approx(s[i] * scale_log2 - shift_a);
      s[i + 1] = exp2_approx(s[i + 1] * scale_log2 - shift_a);
      s[i + 2] = exp2_approx(s[i + 2] * scale_log2 - shift_b);
      s[i + 3] = exp2_approx(s[i + 3] * scale_log2 - shift_b);
    }
    float added_a = 0, added_b = 0;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      added_a += s[i], added_a += s[i + 1];
      added_b += s[i + 2], added_b += s[i + 3];
    }
    sum_a = kFirst ? added_a : sum_a + added_a;
    sum_b = kFirst ? added_b : sum_b + added_b;
  }

 private:
  // `top_a`, `top_b`: the rows' maxima in this tile. They seldom rise once a row has seen a few tiles.
  __device__ __forceinline__ void follow(float top_a, float top_b, float scale_log2) {
    const bool rose_a = top_a > max_a, rose_b = top_b > max_b;
    grew = __any_sync(~0u, rose_a | rose_b);
    if (!grew) return;
    keep_a = rose_a ? exp2_approx((max_a - top_a) * scale_log2) : 1.0f;
    keep_b = rose_b ? exp2_approx((max_b - top_b) * scale_log2) : 1.0f;
    if (rose_a) max_a = top_a;
    if (rose_b) max_b = top_b;
    sum_a *= keep_a, sum_b *= keep_b;
  }
};

}  // namespace flashrel::sm90::prefill
