// What one work item needs while it runs: its scratch, its place, and its first and last acts.
// Included by isa/<name>.cpp only, through kernel.hpp; everything has internal linkage.
#pragma once

#include "backend/cpu/softmax.hpp"
#include "index/ranges.hpp"

namespace flashrel::cpu {
namespace {

constexpr float kLn2 = 0.693147180559945309417f;

template <class Element>
struct Worker {
  const KernelArgs& args;
  const WorkItem& item;
  ScratchLayout layout;
  Lengths lengths;
  std::int64_t first_token = 0;  // of the sequence
  Element *q = nullptr, *rel = nullptr, *rel_terms = nullptr, *k = nullptr, *v = nullptr, *stage = nullptr;
  Element* weight = nullptr;  // row r at r * weight_ld
  long weight_ld = 0;
  int n_rel_terms = 1;  // terms that some row of the item needs
  float *acc = nullptr, *max = nullptr, *least = nullptr, *sum = nullptr, *score = nullptr, *bias = nullptr;
  const void **k_rows = nullptr, **v_rows = nullptr;

  RowState state(int r) const { return {max + r, sum + static_cast<std::ptrdiff_t>(r) * kPanel, least + r}; }
  int row_of_item(int r) const { return item.row_tile * args.tile_rows + r; }
  int token_of(int r) const { return row_token(row_of_item(r), args.group); }
  int head_of(int r) const { return row_head(row_of_item(r), args.group, item.kv_head); }
  Range tokens_of(int r, int n) const { return row_tokens({row_of_item(r), row_of_item(r) + n}, args.group); }
};

template <class Element>
inline Worker<Element> make_worker(const KernelArgs& args, const WorkItem& item, void* scratch) {
  const Strides& s = args.problem.strides;
  const ScratchLayout l = scratch_layout(args.problem, args.tile_rows, args.tile_keys);
  auto* base = static_cast<std::byte*>(scratch);
  Worker<Element> w{args, item, l, {}};
  w.first_token = args.tensors.cu_seqlens_q[item.seq * s.cu_q_seq];
  w.lengths = {static_cast<int>(args.tensors.cu_seqlens_q[(item.seq + 1) * s.cu_q_seq] - w.first_token),
               args.tensors.cache_seqlens[item.seq * s.kv_len_seq]};
  w.q = reinterpret_cast<Element*>(base + l.q);
  w.rel = reinterpret_cast<Element*>(base + l.rel);
  w.rel_terms = reinterpret_cast<Element*>(base + l.rel_terms);
  w.k = reinterpret_cast<Element*>(base + l.k);
  w.v = reinterpret_cast<Element*>(base + l.v);
  w.stage = reinterpret_cast<Element*>(base + l.stage);
  w.acc = reinterpret_cast<float*>(base + l.acc);
  w.max = reinterpret_cast<float*>(base + l.state);
  w.least = w.max + args.tile_rows + kMaxRowBlock;
  w.sum = reinterpret_cast<float*>(base + l.sum);
  w.score = reinterpret_cast<float*>(base + l.score);
  w.bias = reinterpret_cast<float*>(base + l.bias);
  if constexpr (sizeof(Element) == sizeof(float)) {
    w.weight = w.score;
    w.weight_ld = l.score_ld;
  } else {
    w.weight = reinterpret_cast<Element*>(base + l.weight);
    w.weight_ld = l.weight_ld;
  }
  w.k_rows = reinterpret_cast<const void**>(base + l.rows);
  w.v_rows = w.k_rows + args.tile_keys;
  return w;
}
// rel of one row x rel_scale / softmax_scale, exact as a sum of up to three bf16 terms, in the columns of the row's token among
// its 16 rows.
inline void load_rel_terms(Worker<std::uint16_t>& w, int r) {
  const Problem& p = w.args.problem;
  const Strides& s = p.strides;
  const std::int64_t token = w.first_token + w.token_of(r), head = w.head_of(r);
  const auto* rel = static_cast<const std::uint16_t*>(w.args.tensors.rel) + token * s.rel_token + head * s.rel_head;
  const float rel_scale = p.has_rel_scale ? w.args.tensors.rel_scale[token * s.rel_scale_token] : 1.0f;
  const float factor = static_cast<float>(rel_scale / p.softmax_scale);
  std::uint16_t* terms = w.rel_terms + static_cast<std::ptrdiff_t>(r) * kRelTerms;
  clear(terms, kRelTerms);
  const int token_of_16 = r % 16 / w.args.group;
  terms += token_of_16 / 2 * 32 + token_of_16 % 2 * 16;
  for (int e = 0; e < p.d_rel; ++e) {
    float rest = factor * bf16_to_float(rel[e]);
    for (int term = 0; term < kMaxTerms && rest != 0.0f; ++term) {
      std::uint16_t& part = terms[term * kTermElems + e];
      part = float_to_bf16(rest);
      rest -= bf16_to_float(part);
      w.n_rel_terms = max_of(w.n_rel_terms, term + 1);
    }
  }
}

// Queries and rel rows into scratch, zero-padded; accumulators and softmax states emptied.
template <class Element>
inline void begin_item(Worker<Element>& w) {
  const Problem& p = w.args.problem;
  const Strides& s = p.strides;
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  const int d = w.layout.d_padded, d_rel = w.layout.d_rel_padded, n_rows = w.item.n_rows;
  for (int r = 0; r < n_rows; ++r) {
    const std::int64_t token = w.first_token + w.token_of(r), head = w.head_of(r);
    Element* q = w.q + static_cast<std::ptrdiff_t>(r) * d;
    row_to_element(static_cast<const std::byte*>(w.args.tensors.q) + (token * s.q_token + head * s.q_head) * size, p.dtype,
                   p.head_dim, q);
    clear(q + p.head_dim, d - p.head_dim);
    if constexpr (sizeof(Element) == 2)
      if (w.args.proj.direct) load_rel_terms(w, r);
    if (d_rel == 0 || w.args.proj.direct) continue;
    Element* rel = w.rel + static_cast<std::ptrdiff_t>(r) * d_rel;
    row_to_element(static_cast<const std::byte*>(w.args.tensors.rel) + (token * s.rel_token + head * s.rel_head) * size,
                   p.dtype, p.d_rel, rel);
    clear(rel + p.d_rel, d_rel - p.d_rel);
  }
  clear(w.q + static_cast<std::ptrdiff_t>(n_rows) * d, kMaxRowBlock * d);
  if (w.args.proj.direct) clear(w.rel_terms + static_cast<std::ptrdiff_t>(n_rows) * kRelTerms, kMaxRowBlock * kRelTerms);
  if (d_rel > 0) clear(w.rel + static_cast<std::ptrdiff_t>(n_rows) * d_rel, kMaxRowBlock * d_rel);
  clear(w.acc, static_cast<std::ptrdiff_t>(n_rows + kMaxRowBlock) * d);
  for (int r = 0; r < n_rows; ++r) {
    w.max[r] = kEmptyLse;
    w.least[r] = 0;
  }
  clear(w.sum, static_cast<std::ptrdiff_t>(n_rows) * kPanel);
  clear(w.stage + kPanel * d, d);
}
// Normalised rows to out and lse, or to the item's slot.
template <class Element>
inline void end_item(Worker<Element>& w) {
  const Problem& p = w.args.problem;
  const Strides& s = p.strides;
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  const int d = w.layout.d_padded;
  for (int r = 0; r < w.item.n_rows; ++r) {
    float* acc = w.acc + static_cast<std::ptrdiff_t>(r) * d;
    float sum = 0;
    for (int i = 0; i < kPanel; i += Simd::kLanes)
      sum += Simd::reduce_add(Simd::load(w.sum + static_cast<std::ptrdiff_t>(r) * kPanel + i));
    const bool empty = sum == 0.0f;
    const auto inverse = Simd::set1(empty ? 0.0f : 1.0f / sum);
    for (int i = 0; i < d; i += Simd::kLanes) Simd::store(acc + i, Simd::mul(Simd::load(acc + i), inverse));
    if (empty) clear(acc, d);
    const float lse = empty ? kEmptyLse : kLn2 * w.max[r] + __builtin_logf(sum);
    if (w.item.slot >= 0) {
      const std::int64_t part_row = static_cast<std::int64_t>(w.item.slot) * w.args.tile_rows + r;
      std::memcpy(w.args.part_out + part_row * p.head_dim, acc, static_cast<std::size_t>(p.head_dim) * sizeof(float));
      w.args.part_lse[part_row] = lse;
      continue;
    }
    const std::int64_t token = w.first_token + w.token_of(r), head = w.head_of(r);
    float_to_row(acc, p.head_dim, p.dtype,
                 static_cast<std::byte*>(w.args.tensors.out) + (token * s.out_token + head * s.out_head) * size);
    if (w.args.tensors.lse != nullptr) w.args.tensors.lse[token * s.lse_token + head * s.lse_head] = lse;
  }
}

}  // namespace
}  // namespace flashrel::cpu
