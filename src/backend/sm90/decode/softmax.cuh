// Online softmax of one warpgroup's tile: keys are rows, so the 64 scores of a query row lie in one column, spread over the
// four warps. Lane l of warp w holds, of column block b, the columns 8 b + l % 4 * 2 + {0, 1} at keys 16 w + l / 4 (registers
// 4 b + {0, 1}) and 16 w + l / 4 + 8 (registers 4 b + {2, 3}). Scores are in units of 1 / softmax_scale.
#pragma once

#include "backend/sm90/decode/shared.cuh"
#include "gpu/lane_math.cuh"
#include "gpu/mbarrier.cuh"
#include "index/softmax_state.hpp"

namespace flashrel::sm90::decode {

// Over the eight lanes that hold the same columns.
__device__ __forceinline__ float column_max(float x) {
#pragma unroll
  for (int step = 4; step <= 16; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int step = 4; step <= 16; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <int kRows>
struct SoftmaxColumns {
  static constexpr int kBlocks = kRows / 8;
  // The exponent's reference is the true maximum so far: a dominant key then has probability 1, which no rounding hurts. Only
  // when many keys share the weight (this lane's alone sum to kManyKeys) may a score pass it by `slack`, that is by a factor
  // of up to 2^0.5: such a key weighs at most a sixth of its row, and its rounding no more than that of the others.
  // While a row has seen nothing the reference is lowest_score, to which hidden scores (-inf) have probability 0.
  static constexpr float kManyKeys = 8;
  float reference[kBlocks * 2];
  float sum[kBlocks * 2];  // this lane's keys only

  __device__ __forceinline__ void clear(float lowest_score) {
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i) reference[i] = lowest_score, sum[i] = 0;
  }

  // Whether any reference must follow. slack: 0.5 / scale_log2.
  __device__ __forceinline__ bool grew(const float (&s)[kRows / 2], float slack) const {
    bool any = false;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float bound = reference[b * 2 + i] + (sum[b * 2 + i] > kManyKeys ? slack : 0.0f);
        any |= fmaxf(s[b * 4 + i], s[b * 4 + 2 + i]) > bound;
      }
    return any;
  }

  // Takes the tile's maxima, in `warp_max` by warp and column, into the references and rescales sums and output.
  __device__ __forceinline__ void follow(const float (&warp_max)[4][kRows], float (&o)[2][kRows / 2], float scale_log2,
                                         int lane) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = b * 8 + lane % 4 * 2;
      float2 top = *reinterpret_cast<const float2*>(&warp_max[0][column]);
#pragma unroll
      for (int w = 1; w < 4; ++w) {
        const float2 x = *reinterpret_cast<const float2*>(&warp_max[w][column]);
        top.x = fmaxf(top.x, x.x), top.y = fmaxf(top.y, x.y);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float next = fmaxf(i == 0 ? top.x : top.y, reference[b * 2 + i]);
        const float keep = gpu::exp2_approx((reference[b * 2 + i] - next) * scale_log2);
        reference[b * 2 + i] = next;
        sum[b * 2 + i] *= keep;
#pragma unroll
        for (int half = 0; half < 2; ++half) o[half][b * 4 + i] *= keep, o[half][b * 4 + 2 + i] *= keep;
      }
    }
  }

  // Scores become probabilities.
  __device__ __forceinline__ void exponentiate(float (&s)[kRows / 2], float scale_log2) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float shift = reference[b * 2 + i] * scale_log2;
        s[b * 4 + i] = gpu::exp2_approx(s[b * 4 + i] * scale_log2 - shift);
        s[b * 4 + 2 + i] = gpu::exp2_approx(s[b * 4 + 2 + i] * scale_log2 - shift);
        sum[b * 2 + i] += s[b * 4 + i] + s[b * 4 + 2 + i];
      }
  }
};

}  // namespace flashrel::sm90::decode
