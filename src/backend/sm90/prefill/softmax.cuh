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
  // The exponent's reference: a score x has the probability exp2(x * scale_log2 - ref). It is that of the heaviest key of the
  // row when it was last moved (is_heavy). -inf while a row has seen nothing.
  float ref_a = 0, ref_b = 0;
  float sum_a = 0, sum_b = 0;      // this lane's columns only; the rows' sums are quad_sum of them
  float known_a = 0, known_b = 0;  // lower bounds of the rows' sums
  float keep_a = 1, keep_b = 1;    // what the output so far must be multiplied by, if `moved`
  bool moved = false;              // in any row of the warp

  // A job's first tile.
  template <int kScores>
  __device__ __forceinline__ void begin(float (&s)[kScores], float scale_log2) {
    const Pair top = largest(s);
    ref_a = gpu::quad_max(top.a) * scale_log2, ref_b = gpu::quad_max(top.b) * scale_log2;
    sum_a = sum_b = 0;
    exponentiate<true>(s, scale_log2);
    know_rows();
  }

  // A later tile, by way of its largest scores. kMayBeEmpty: all of a row's scores may be -inf; its probabilities are 0 then,
  // even while its reference is still -inf.
  template <bool kMayBeEmpty, int kScores>
  __device__ __forceinline__ void follow(float (&s)[kScores], float scale_log2) {
    const Pair top = largest(s);
    move_to(top.a * scale_log2, top.b * scale_log2);
    exponentiate<kMayBeEmpty>(s, scale_log2);
  }

  // A later tile without a bias, where the largest score of a row hardly ever rises by much: takes the references for right,
  // and looks for heavy keys only where a lane's sum leaves room for one. That spares the search for the largest scores, 8 % of
  // a step. False: a score lies so far above its reference that its probability is lost, and the scores with it; nothing has
  // changed but `s`.
  template <int kScores>
  __device__ __forceinline__ bool guess(float (&s)[kScores], float scale_log2) {
    const Pair added = probabilities(s, scale_log2, ref_a, ref_b);
    moved = false;
    float by_a = 1, by_b = 1;
    if (__any_sync(~0u, (added.a > most(known_a)) | (added.b > most(known_b)))) {
      const Pair top = largest(s);
      const float top_a = gpu::quad_max(top.a), top_b = gpu::quad_max(top.b);
      constexpr float kLost = 0x1p100f;  // far below infinity
      if (__any_sync(~0u, (top_a > kLost) | (top_b > kLost))) return false;
      known_a = gpu::quad_sum(sum_a), known_b = gpu::quad_sum(sum_b);
      const bool move_a = is_heavy(top_a, known_a), move_b = is_heavy(top_b, known_b);
      moved = __any_sync(~0u, move_a | move_b);
      if (moved) {
        // By what the references really move, roundings included.
        const float old_a = ref_a, old_b = ref_b;
        if (move_a) ref_a += __log2f(top_a);
        if (move_b) ref_b += __log2f(top_b);
        by_a = gpu::exp2_approx(old_a - ref_a), by_b = gpu::exp2_approx(old_b - ref_b);
        shrink(by_a, by_b);
#pragma unroll
        for (int i = 0; i < kScores; i += 4) {
          s[i] *= by_a, s[i + 1] *= by_a;
          s[i + 2] *= by_b, s[i + 3] *= by_b;
        }
      }
    }
    sum_a += added.a * by_a, sum_b += added.b * by_b;
    return true;
  }

  // Asks the other lanes for their parts of the rows' sums, while the scores of the next tile are on their way. Under a bias
  // moves are frequent, and this spares most looks at rows that need none.
  __device__ __forceinline__ void know_rows() { known_a = gpu::quad_sum(sum_a), known_b = gpu::quad_sum(sum_b); }

 private:
  struct Pair {
    float a, b;
  };

  // Of this lane.
  template <int kScores>
  __device__ __forceinline__ static Pair largest(const float (&s)[kScores]) {
    Pair top{s[0], s[2]};
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      top.a = fmaxf(top.a, fmaxf(s[i], s[i + 1]));
      top.b = fmaxf(top.b, fmaxf(s[i + 2], s[i + 3]));
    }
    return top;
  }

  // Scores become probabilities; returns this lane's sums of them.
  template <int kScores>
  __device__ __forceinline__ static Pair probabilities(float (&s)[kScores], float scale_log2, float ref_a, float ref_b) {
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      s[i] = gpu::exp2_approx(s[i] * scale_log2 - ref_a);
      s[i + 1] = gpu::exp2_approx(s[i + 1] * scale_log2 - ref_a);
      s[i + 2] = gpu::exp2_approx(s[i + 2] * scale_log2 - ref_b);
      s[i + 3] = gpu::exp2_approx(s[i + 3] * scale_log2 - ref_b);
    }
    Pair added{0, 0};
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      added.a += s[i], added.a += s[i + 1];
      added.b += s[i + 2], added.b += s[i + 3];
    }
    return added;
  }

  template <bool kMayBeEmpty, int kScores>
  __device__ __forceinline__ void exponentiate(float (&s)[kScores], float scale_log2) {
    const float a = kMayBeEmpty && ref_a == kEmptyLse ? 0.0f : ref_a;
    const float b = kMayBeEmpty && ref_b == kEmptyLse ? 0.0f : ref_b;
    const Pair added = probabilities(s, scale_log2, a, b);
    sum_a += added.a, sum_b += added.b;
  }

  // `top_a`, `top_b`: what the references would be by the largest scores that this lane has of its rows in this tile. As long
  // as none of them is heavy beside what is known of the row's sum, no row can need a move, and the lanes need not talk.
  __device__ __forceinline__ void move_to(float top_a, float top_b) {
    moved = false;
    if (!__any_sync(~0u,
                    is_heavy(gpu::exp2_approx(top_a - ref_a), known_a) | is_heavy(gpu::exp2_approx(top_b - ref_b), known_b)))
      return;
    top_a = gpu::quad_max(top_a), top_b = gpu::quad_max(top_b);
    known_a = gpu::quad_sum(sum_a), known_b = gpu::quad_sum(sum_b);
    const bool move_a = is_heavy(gpu::exp2_approx(top_a - ref_a), known_a);
    const bool move_b = is_heavy(gpu::exp2_approx(top_b - ref_b), known_b);
    moved = __any_sync(~0u, move_a | move_b);
    if (!moved) return;
    shrink(move_a ? gpu::exp2_approx(ref_a - top_a) : 1.0f, move_b ? gpu::exp2_approx(ref_b - top_b) : 1.0f);
    if (move_a) ref_a = top_a;
    if (move_b) ref_b = top_b;
  }

  __device__ __forceinline__ void shrink(float a, float b) {
    keep_a = a, keep_b = b;
    sum_a *= a, sum_b *= b, known_a *= a, known_b *= b;
  }

  // Moving the reference costs a multiplication of the whole output, and scores grow a little all the time. But a key's
  // probability is rounded to 16 bits unless it is 1, so the heaviest key of a row must be the reference where it carries
  // the row. A row stays behind only while its new heaviest key weighs at most half of what was summed up before, which is a
  // third of the row. What a row decides depends on that row alone.
  __device__ __forceinline__ static float most(float sum) {
    constexpr float kMaxWeight = 256;
    return fminf(0.5f * sum, kMaxWeight);
  }
  // `weight`: of a key, relative to the reference.
  __device__ __forceinline__ static bool is_heavy(float weight, float sum) { return (weight > 1.0f) & (weight > most(sum)); }
};

}  // namespace flashrel::sm90::prefill
