// Problem: everything about one call except its pointers (of them it keeps only how they are aligned).
// Made by api/validate, read by plan and the backends.
#pragma once

#include <cstdint>

#include "base/types.hpp"
#include "index/distance.hpp"

namespace flashrel {

// Strides in elements; the last dimension of every floating-point tensor is contiguous.
struct Strides {
  std::int64_t q_token = 0, q_head = 0;
  std::int64_t k_page = 0, k_slot = 0, k_head = 0;
  std::int64_t v_page = 0, v_slot = 0, v_head = 0;
  std::int64_t table_seq = 0, table_page = 1;
  std::int64_t kv_len_seq = 1, cu_q_seq = 1;
  std::int64_t rel_logits_token = 0, rel_logits_head = 0;
  std::int64_t rel_token = 0, rel_head = 0;
  std::int64_t rel_proj_row = 0;
  std::int64_t rel_scale_token = 0;
  std::int64_t out_token = 0, out_head = 0;
  std::int64_t lse_token = 0, lse_head = 0;
  bool operator==(const Strides&) const = default;
};

struct Problem {
  MemoryKind memory = MemoryKind::kHost;
  DType dtype = DType::kBFloat16;  // of q, k_cache, v_cache, out, rel, rel_proj

  std::int64_t n_tokens = 0;
  int n_seqs = 0;
  int n_q_heads = 1, n_kv_heads = 1, head_dim = 0;
  std::int64_t n_pages = 0;
  int page_size = 1;
  std::int64_t max_pages = 0;     // width of the block table
  std::int64_t max_seqlen_q = 0;  // bounds: plans and workspaces depend on these, never on the lengths
  std::int64_t max_seqlen_k = 0;

  BiasMode bias = BiasMode::kNone;
  DType rel_logits_dtype = DType::kBFloat16;  // mode logits
  std::int64_t rel_extent = 0;
  int d_rel = 0;               // mode fused
  bool has_rel_scale = false;  // mode fused
  bool has_lse = false;

  double softmax_scale = 0;
  Range visible{-kFar, kFar};  // distances a row sees
  Range band{0, 0};            // distances whose bias is read from L
  std::int64_t rel_zero = 0;

  Strides strides;
  int input_alignment = 16;  // bytes: the largest power of two up to 16 that divides the addresses of q, K, V and the bias

  int group() const { return n_q_heads / n_kv_heads; }
  bool operator==(const Problem&) const = default;
};

}  // namespace flashrel
