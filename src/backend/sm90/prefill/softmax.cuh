// Online softmax of one lane's two rows: a = lane / 4 and b = lane / 4 + 8 of the warp's 16 (score registers 4 b + {0, 1} and
// 4 b + {2, 3} of key block b). Scores are in units of 1 / softmax_scale.
#pragma once

#include "gpu/element.cuh"
#include "gpu/lane_math.cuh"
#include "index/softmax_state.hpp"

namespace flashrel::sm90::prefill {

// Hidden scores become -inf, whatever they were. `a`, `b`: the columns that the two rows see (tiles.hpp, lane_columns).
template <int kScores>
__device__ __forceinline__ void mask_scores(float (&s)[kScores], std::uint32_t a, std::uint32_t b) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    const int reg = i / 2 * 4 + i % 2;
    if ((a >> i & 1) == 0) s[reg] = kEmptyLse;
    if ((b >> i & 1) == 0) s[reg + 2] = kEmptyLse;
  }
}

struct SoftmaxRows {
  // The exponent's reference: the largest score when it was last moved (is_heavy). -inf while a row has seen nothing.
  float max_a = 0, max_b = 0;
  float sum_a = 0, sum_b = 0;      // this lane's columns only; the rows' sums are quad_sum of them
  float known_a = 0, known_b = 0;  // what this lane knows of the rows' sums (know_rows)
  float keep_a = 1, keep_b = 1;    // what the output so far must be multiplied by, if `grew`
  bool grew = false;               // in any row of the warp

  // Before the scores of the next tile arrive. kWhole: asks the other lanes, which pays where moves are frequent, as under a
  // bias.
  template <bool kWhole>
  __device__ __forceinline__ void know_rows() {
    known_a = kWhole ? gpu::quad_sum(sum_a) : sum_a;
    known_b = kWhole ? gpu::quad_sum(sum_b) : sum_b;
  }

  // Turns scores into probabilities relative to the reference. kFirst: there is no state yet. kMayBeEmpty: all of a row's
  // scores may be -inf; its probabilities are 0 then, even while its reference is still -inf.
  template <bool kFirst, bool kMayBeEmpty, int kScores>
  __device__ __forceinline__ void update(float (&s)[kScores], float scale_log2) {
    float a = s[0], b = s[2];
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      a = fmaxf(a, fmaxf(s[i], s[i + 1]));
      b = fmaxf(b, fmaxf(s[i + 2], s[i + 3]));
    }
    if constexpr (kFirst) {
      max_a = gpu::quad_max(a), max_b = gpu::quad_max(b);
    } else {
      follow(a, b, scale_log2);
    }
    float shift_a = max_a * scale_log2, shift_b = max_b * scale_log2;
    if constexpr (kMayBeEmpty) {
      shift_a = max_a == kEmptyLse ? 0.0f : shift_a;
      shift_b = max_b == kEmptyLse ? 0.0f : shift_b;
    }
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      s[i] = gpu::exp2_approx(s[i] * scale_log2 - shift_a);
      s[i + 1] = gpu::exp2_approx(s[i + 1] * scale_log2 - shift_a);
      s[i + 2] = gpu::exp2_approx(s[i + 2] * scale_log2 - shift_b);
      s[i + 3] = gpu::exp2_approx(s[i + 3] * scale_log2 - shift_b);
    }
    float added_a = 0, added_b = 0;
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      added_a += s[i], added_a += s[i + 1];
      added_b += s[i + 2], added_b += s[i + 3];
    }
    sum_a = kFirst ? added_a : sum_a + added_a;
    sum_b = kFirst ? added_b : sum_b + added_b;
  }

 private:
  // `top_a`, `top_b`: the largest scores that this lane has of its rows in this tile. As long as none of them is heavy beside
  // what the lane knows of the row's sum, no row can need a move, and the lanes need not talk.
  __device__ __forceinline__ void follow(float top_a, float top_b, float scale_log2) {
    grew = false;
    if (!__any_sync(~0u, is_heavy(top_a, max_a, known_a, scale_log2) | is_heavy(top_b, max_b, known_b, scale_log2))) return;
    top_a = gpu::quad_max(top_a), top_b = gpu::quad_max(top_b);
    const bool move_a = is_heavy(top_a, max_a, gpu::quad_sum(sum_a), scale_log2);
    const bool move_b = is_heavy(top_b, max_b, gpu::quad_sum(sum_b), scale_log2);
    grew = __any_sync(~0u, move_a | move_b);
    if (!grew) return;
    keep_a = move_a ? gpu::exp2_approx((max_a - top_a) * scale_log2) : 1.0f;
    keep_b = move_b ? gpu::exp2_approx((max_b - top_b) * scale_log2) : 1.0f;
    if (move_a) max_a = top_a;
    if (move_b) max_b = top_b;
    sum_a *= keep_a, sum_b *= keep_b;
  }

  // Moving the reference costs a multiplication of the whole output, and scores grow a little all the time. But a key's
  // probability is rounded to 16 bits unless it is 1, so the heaviest key of a row must be the reference where it carries
  // the row. A row stays behind only while its new heaviest key weighs at most half of what was summed up before, which is a
  // third of the row. What a row decides depends on that row alone.
  __device__ __forceinline__ static bool is_heavy(float top, float max, float sum, float scale_log2) {
    constexpr float kMaxWeight = 256;
    const float weight = gpu::exp2_approx((top - max) * scale_log2);
    return (top > max) & (weight > fminf(0.5f * sum, kMaxWeight));  // no branch
  }
};

}  // namespace flashrel::sm90::prefill
