// Online softmax over accumulator fragments (index/frag.hpp), in base 2: a lane holds, of every 16-row block, the rows
// lane / 4 and lane / 4 + 8; the four lanes of a quad share a row.
//
// Probabilities are measured against the true running maximum, so that a row's loudest key has probability 1, which 16 bits
// hold exactly. (Raising the reference only after a growth of 2^8 rescales less often, but then the loudest key is rounded:
// rows that one key dominates erred up to 1.3 times what docs/tolerance.md allows.) The output is rescaled only when some
// row's maximum moved.
#pragma once

#include "gpu/lane_math.cuh"
#include "gpu/params.hpp"
#include "gpu/rows.cuh"
#include "index/softmax_state.hpp"

namespace flashrel::gpu {

template <int kRowBlocks>
struct SoftmaxState {
  float max_log2[kRowBlocks][2];  // reference of the probabilities; -inf before the first visible key
  float sum[kRowBlocks][2];       // this lane's share

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowBlocks * 2; ++i) max_log2[i / 2][i % 2] = kEmptyLse, sum[i / 2][i % 2] = 0.0f;
  }
};

// The same between two tiles, in shared memory: the main loop of the rows kernel has no registers for it.
// LAYOUT: [row block][max, sum][thread] float2.
template <int kThreads>
struct StoredSoftmaxState {
  float2* s_state;

  template <int kRowBlocks>
  __device__ __forceinline__ void store(const SoftmaxState<kRowBlocks>& state) const {
    float2* mine = s_state + opaque(threadIdx.x);
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      mine[r * 2 * kThreads] = {state.max_log2[r][0], state.max_log2[r][1]};
      mine[(r * 2 + 1) * kThreads] = {state.sum[r][0], state.sum[r][1]};
    }
  }
  template <int kRowBlocks>
  __device__ __forceinline__ SoftmaxState<kRowBlocks> load() const {
    const float2* mine = s_state + opaque(threadIdx.x);
    SoftmaxState<kRowBlocks> state;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      const float2 top = mine[r * 2 * kThreads], sum = mine[(r * 2 + 1) * kThreads];
      state.max_log2[r][0] = top.x, state.max_log2[r][1] = top.y;
      state.sum[r][0] = sum.x, state.sum[r][1] = sum.y;
    }
    return state;
  }
};

// Turns scores into probabilities in place: p = 2^(score * scale - max), scale > 0. Hidden scores are -inf.
// Rescales `out` and the sums when some row's reference moved. The first kRowBlocks blocks only.
template <int kRowBlocks, int kAllBlocks, int kKeyBlocks, int kDimBlocks>
__device__ __forceinline__ void online_softmax(float (&score)[kAllBlocks][kKeyBlocks][4],
                                               float (&out)[kAllBlocks][kDimBlocks][4], SoftmaxState<kRowBlocks>& state,
                                               float scale) {
  float factor[kRowBlocks][2];
  bool moved = false;
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = kEmptyLse;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) top = fmaxf(top, fmaxf(score[r][n][2 * h], score[r][n][2 * h + 1]));
      const float old = state.max_log2[r][h];
      top = fmaxf(quad_max(top) * scale, old);
      factor[r][h] = exp2_approx(old - (top == kEmptyLse ? 0.0f : top));  // 0 while nothing was visible
      moved = moved || top > old;
      state.max_log2[r][h] = top;
      state.sum[r][h] *= factor[r][h];
    }
  // EVIDENCE (8K, 64/8 heads, H200, 2026-11-30): one vote a warp 3.64 ms, none 3.67 ms, one for every eight rows 3.72 ms.
  if (__any_sync(kAllLanes, moved))
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
      for (int d = 0; d < kDimBlocks; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[r][d][i] *= factor[r][i / 2];
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float reference = state.max_log2[r][h] == kEmptyLse ? 0.0f : state.max_log2[r][h];
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& s = score[r][n][2 * h + i];
          s = exp2_approx(fmaf(s, scale, -reference));
          state.sum[r][h] += s;
        }
    }
}

// Natural-log lse of a finished row, from its reference and its full sum.
__device__ __forceinline__ float finish_lse(float max_log2, float sum) {
  return sum == 0.0f ? kEmptyLse : (max_log2 + log2f(sum)) * kLn2;
}
__device__ __forceinline__ float finish_factor(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

}  // namespace flashrel::gpu
