// What the sm90 kernel is given: tensor maps for everything TMA reads, and plain parameters for the rest.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/sm90/prefill/tiles.hpp"
#include "gpu/params.hpp"

namespace flashrel::sm90::prefill {

struct LogitsParams {
  int row_bytes = 0, slot_bytes = 0;  // of the ring (logits.hpp)
  FastDiv n_slots;
  int token_step = 1;  // 0: one row a head serves all tokens
  float factor = 1;    // of the product that picks entries: 1 / softmax_scale, or 1
};

// Maps (innermost dimension first; x runs over elements of a row):
//   q    (64 x, head, token, 128-byte line)                    box (64, group, 128 / group, lines)
//   k, v (x = head * head_stride + 64 line part, 8 slots, line, slot / 8, page)   box (64, 8, lines, keys / 8, 1)
//   rel  (d_rel, head, token)                                  box (16 or 32, group, 128 / group)
//   logits (rel_extent, head, token)                           box (entries of a slot's row, group, 1)
struct KernelParams {
  CUtensorMap q, k, v;
  CUtensorMap rel;         // mode fused
  CUtensorMap logits_map;  // mode logits
  gpu::BatchParams batch;
  gpu::OutputParams output;
  gpu::WorkParams work;
  // Without a work list the CTAs find their items themselves.
  bool schedules_itself = false;
  int n_seqs = 0, n_kv_heads = 1;
  Range visible;
  Range band;  // empty without a bias
  int n_tokens = 0;
  int group = 1, group_log2 = 0;
  bool windowed = false;                     // rows see a bounded number of keys back
  int n_boxes = 1, keys_per_box = 8;         // of a key tile
  int zero_page = 0;                         // page coordinate outside the cache: TMA fills zeros
  int k_head_stride = 0, v_head_stride = 0;  // elements; 0 with one KV head
  float scale_log2 = 0;                      // softmax_scale * log2(e)
  float scale_ln = 0;                        // softmax_scale / scale_log2: from log2 to natural logarithms

  // With a bias. Scores are accumulated in units of 1 / softmax_scale, and so the bias enters.
  int rel_extent = 0;
  std::int64_t rel_zero = 0;
  float inverse_scale = 0;  // 1 / softmax_scale
  LogitsParams logits;      // mode logits
  // Mode fused: the bias is rel * proj * (tau / softmax_scale).
  const void* proj = nullptr;  // (d_rel, rel_extent)
  bool edge_clamps = false;    // distances past the table take its nearest entry, else 0
  std::int64_t proj_row_stride = 0;
  int d_rel = 0;
  const float* rel_scale = nullptr;  // tau per token, nullable
  std::int64_t rel_scale_stride = 0;
  // 0: the factor is a power of two, the same for all tokens, and is multiplied into rel or rel_logits, exactly; 1: into the
  // fp32 bias.
  int n_factor_turns = 1;
  gpu::PagedTensor k_cache;  // for scores that are made again (consumer.cuh)
  Range proj_entries;        // that the call may need (shear.hpp)
};

}  // namespace flashrel::sm90::prefill
