// What the sm90 kernel is given: tensor maps for everything TMA reads, and plain parameters for the rest.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/sm90/prefill/tiles.hpp"
#include "gpu/params.hpp"

namespace flashrel::sm90::prefill {

// Maps (innermost dimension first; x runs over elements of a row):
//   q    (64 x, head, token, 128-byte line)                    box (64, group, 128 / group, 2)
//   k, v (x = head * head_stride + 64 line part, 8 slots, line, slot / 8, page)   box (64, 8, 2, keys / 8, 1)
//   rel  (d_rel, head, token)                                  box (16, group, 128 / group)
struct KernelParams {
  CUtensorMap q, k, v, rel;
  gpu::BatchParams batch;
  gpu::OutputParams output;
  gpu::WorkParams work;
  Range visible;
  Range band;  // mode fused; else empty
  int n_tokens = 0;
  int group = 1, group_log2 = 0;
  int n_boxes = 1, keys_per_box = kTileKeys;  // of a key tile
  int zero_page = 0;                          // page coordinate outside the cache: TMA fills zeros
  int k_head_stride = 0, v_head_stride = 0;   // elements; 0 with one KV head
  float scale = 0, scale_log2 = 0;            // softmax_scale; times log2(e)

  // Mode fused. Scores are accumulated in units of 1 / softmax_scale, so the bias enters as rel * proj * (tau / softmax_scale).
  const void* proj = nullptr;  // (d_rel, rel_extent)
  std::int64_t proj_row_stride = 0;
  int d_rel = 0, rel_extent = 0;
  std::int64_t rel_zero = 0;
  const float* rel_scale = nullptr;  // tau per token, nullable
  std::int64_t rel_scale_stride = 0;
  float inverse_scale = 0;  // 1 / softmax_scale
  // 0: the factor is a power of two, the same for all tokens, and is multiplied into rel, exactly; 1: into the fp32 bias.
  int n_factor_turns = 1;
};

}  // namespace flashrel::sm90::prefill
