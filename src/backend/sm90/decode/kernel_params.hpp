// What the decode kernel is given: tensor maps for everything TMA reads, and plain parameters for the rest.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/sm90/decode/tiles.hpp"
#include "gpu/params.hpp"
#include "gpu/shares.hpp"

namespace flashrel::sm90::decode {

// Parts of a unit are merged by the CTAs that made them (merge.cuh). Both counters stand at the unit's first slot and the
// following ones; they only grow, by the unit's number of parts a run.
struct MergeParams {
  std::uint32_t* arrived = nullptr;  // [first slot]: parts written; nullptr: parts are merged by another kernel
  std::uint32_t* taken = nullptr;    // [slot]: `arrived` as it is when the run is over, once a slice has been taken on
  int patience_clocks = 0;           // how long a CTA waits for the parts of others
};

// Maps (innermost dimension first; x runs over elements of a row):
//   q    (64 x, head, token, 128-byte line)                    box (64, group, rows / group, 1)
//   k, v (x = head * head_stride + 64 line part, 8 slots, line, slot / 8, page)   box (64, 8, 2, keys / 8, 1)
//   rel  (d_rel, head, token)                                  box (16, group, rows / group)
//   proj (entry, d_rel)                                        box (bias_entries, 16)
//   logits (entry, head, token)                                box (bias_entries, group, rows / group)
struct KernelParams {
  CUtensorMap q, k, v, rel, proj, logits;
  gpu::BatchParams batch;
  gpu::OutputParams output;
  gpu::WorkParams work;
  const gpu::Share* shares = nullptr;  // one a CTA; nullptr: items are dealt out in equal numbers
  MergeParams merge;
  // The schedule is older than the kernel before this one, so keys may be read while that is still running: all but the newest
  // q_len of a sequence, which it may be writing.
  bool starts_early = false;
  Range visible;
  Range band;  // empty in mode none
  int n_tokens = 0;
  int group_log2 = 0;
  int n_boxes = 1, keys_per_box = kTileKeys;  // of a key tile
  int zero_page = 0;                          // page coordinate outside the cache: TMA fills zeros
  int k_head_stride = 0, v_head_stride = 0;   // elements; 0 with one KV head
  int q_bytes = 0, rel_bytes = 0;             // of an item
  float scale = 0, scale_log2 = 0;            // softmax_scale; times log2(e)
  float slack = 0;                            // SoftmaxColumns::grew
  float lowest_score = 0;                     // below every score that matters; times scale_log2 it is finite

  // Scores are accumulated in units of 1 / softmax_scale, so the bias enters as L / softmax_scale; in mode fused L is
  // rel * proj * tau.
  int rel_zero = 0;
  int logits_bytes = 0;              // of one tile
  const float* rel_scale = nullptr;  // tau per token, nullable
  std::int64_t rel_scale_stride = 0;
  float inverse_scale = 0;  // 1 / softmax_scale
};

}  // namespace flashrel::sm90::decode
