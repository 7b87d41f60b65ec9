// The bias of one tile, written into the score registers before QK adds to them, in units of 1 / softmax_scale.
// Mode logits reads one entry a score. Mode fused: rel_proj^T (keys x 16) times rel^T (16 x rows) on the matrix units. All rows
// of a token share their distances, so 16 keys of the tile are 16 neighbouring entries of rel_proj, and a block of 8 columns
// takes one product for each token it holds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/sm90/decode/shared.cuh"
#include "gpu/element.cuh"
#include "gpu/mma_sync.cuh"

namespace flashrel::sm90::decode {

// d = a * b; the zero accumulator is an operand, not four registers to clear first.
template <class T>
__device__ __forceinline__ void bias_product(float (&d)[4], const std::uint32_t (&a)[4], uint2 b) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "f"(0.0f));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "f"(0.0f));
}

// s = bias of this lane's keys, `key` of the tile and `key` + 8, in units of 1 / softmax_scale. The 16 values of an entry are
// dealt out to the k index of the product in the order in which a lane finds them in 8 bytes; rel and proj use the same order,
// so the sum is the same. kTokens: of a block of 8 columns; 0 = 8 / group, known at run time only. kSteps: of 16 values.
template <class T, int kRows, int kSteps, int kTokens>
__device__ __forceinline__ void bias_scores(float (&s)[kRows / 2], const std::uint8_t* proj, const std::uint8_t* rel,
                                            const float* factor, int group_log2, int key, int shift) {
  constexpr int kProjStep = bias_entries(kRows) * kRelRowBytes, kRelStep = kRows * kRelRowBytes;
  const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const std::uint8_t* lane_proj = proj + (shift + bias_entry(0, key)) * kRelRowBytes + c * 8;
  const std::uint8_t* lane_rel = rel + r * kRelRowBytes + c * 8;
  const int tokens_per_block = kTokens != 0 ? kTokens : 8 >> group_log2;
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b) {
    float total[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint2 rel_values = *reinterpret_cast<const uint2*>(lane_rel + step * kRelStep + b * 8 * kRelRowBytes);
      const std::uint8_t* entry = lane_proj + step * kProjStep + (b * 8 >> group_log2) * kRelRowBytes;
#pragma unroll kTokens == 0 ? 1 : kTokens
      for (int t = 0; t < tokens_per_block; ++t) {
        const uint2 upper = *reinterpret_cast<const uint2*>(entry + t * kRelRowBytes);
        const uint2 lower = *reinterpret_cast<const uint2*>(entry + (t - 8) * kRelRowBytes);
        const std::uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
        const bool mine = kTokens == 1 || r >> group_log2 == t;  // column r of the block is a row of token t
        float d[4];
        bias_product<T>(d, a, mine ? rel_values : make_uint2(0, 0));
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = t == 0 && step == 0 ? d[i] : total[i] + d[i];
      }
    }
    const float2 f = *reinterpret_cast<const float2*>(factor + b * 8 + c * 2);
    s[b * 4] = total[0] * f.x, s[b * 4 + 1] = total[1] * f.y;
    s[b * 4 + 2] = total[2] * f.x, s[b * 4 + 3] = total[3] * f.y;
  }
}

template <class T, int kRows, int kSteps>
__device__ __forceinline__ void bias_scores(float (&s)[kRows / 2], const std::uint8_t* proj, const std::uint8_t* rel,
                                            const float* factor, int group_log2, int key, int shift) {
  if (group_log2 >= 3)
    bias_scores<T, kRows, kSteps, 1>(s, proj, rel, factor, group_log2, key, shift);
  else if (group_log2 == 2)
    bias_scores<T, kRows, kSteps, 2>(s, proj, rel, factor, group_log2, key, shift);
  else
    bias_scores<T, kRows, kSteps, 0>(s, proj, rel, factor, group_log2, key, shift);
}

// Mode logits, with the registers of bias_scores: this tile's run of rel_logits, a row after the other.
template <class T, int kRows>
__device__ __forceinline__ void logits_scores(float (&s)[kRows / 2], const std::uint8_t* logits, float factor, int group_log2,
                                              int key, int shift) {
  const int lane = threadIdx.x % 32;
  const T* lane_logits = reinterpret_cast<const T*>(logits) + shift + bias_entry(0, key);
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = b * 8 + lane % 4 * 2 + i;
      const T* entry = lane_logits + row * bias_entries(kRows) + (row >> group_log2);
      s[b * 4 + i] = gpu::to_float(entry[0]) * factor;
      s[b * 4 + 2 + i] = gpu::to_float(entry[-8]) * factor;
    }
}

}  // namespace flashrel::sm90::decode
