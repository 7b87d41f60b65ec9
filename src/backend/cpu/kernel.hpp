// The tiled online softmax, written once for every instruction set.
// Included by isa/<name>.cpp only, after the unit's `Simd` and its matrix type; everything has internal linkage.
//
// A work item is a row tile (packed rows of one sequence and KV head) times a run of key tiles. For each key tile the
// visible keys are packed once and shared by all row blocks of the tile; a row block computes its scores, turns them
// into weights in place, and adds weights x V to its accumulators.
// Scores live in base 2: x = log2(e) * score. A row's heaviest key always weighs exactly 1, so that a row that one key
// dominates comes out as exact as its values although weights are rounded to bf16. What rounding took from keys that hold
// more than kHeavy of their row is added back in float32: a few such keys would otherwise decide a row's error by luck.
// Every row's arithmetic depends on the row alone (its keys, 16 at a time by absolute position), never on the row
// tile, the neighbours or the thread.
#pragma once

#include <cmath>

#include "backend/cpu/gemm.hpp"
#include "backend/cpu/pack.hpp"
#include "index/ranges.hpp"
#include "index/softmax_state.hpp"

namespace flashrel::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;
constexpr float kHeavy = 1.0f / 16;
constexpr int kMaxHeavy = 16;

template <class Element>
struct Worker {
  const KernelArgs& args;
  const WorkItem& item;
  ScratchLayout layout;
  Lengths lengths;
  std::int64_t first_token = 0;  // of the sequence
  Element *q = nullptr, *rel = nullptr, *k = nullptr, *v = nullptr, *stage = nullptr;
  Element* weight = nullptr;  // row r at r * weight_ld
  long weight_ld = 0;
  float *acc = nullptr, *max = nullptr, *sum = nullptr, *score = nullptr, *bias = nullptr;
  const void **k_rows = nullptr, **v_rows = nullptr;

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
  w.k = reinterpret_cast<Element*>(base + l.k);
  w.v = reinterpret_cast<Element*>(base + l.v);
  w.stage = reinterpret_cast<Element*>(base + l.stage);
  w.acc = reinterpret_cast<float*>(base + l.acc);
  w.max = reinterpret_cast<float*>(base + l.state);
  w.sum = w.max + args.tile_rows + kMaxRowBlock;
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

template <class Element>
inline void clear(Element* data, std::ptrdiff_t n) {
  std::memset(static_cast<void*>(data), 0, static_cast<std::size_t>(n) * sizeof(Element));
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
    if (d_rel == 0) continue;
    Element* rel = w.rel + static_cast<std::ptrdiff_t>(r) * d_rel;
    row_to_element(static_cast<const std::byte*>(w.args.tensors.rel) + (token * s.rel_token + head * s.rel_head) * size,
                   p.dtype, p.d_rel, rel);
    clear(rel + p.d_rel, d_rel - p.d_rel);
  }
  clear(w.q + static_cast<std::ptrdiff_t>(n_rows) * d, kMaxRowBlock * d);
  if (d_rel > 0) clear(w.rel + static_cast<std::ptrdiff_t>(n_rows) * d_rel, kMaxRowBlock * d_rel);
  clear(w.acc, static_cast<std::ptrdiff_t>(n_rows + kMaxRowBlock) * d);
  for (int r = 0; r < n_rows; ++r) {
    w.max[r] = kEmptyLse;
    w.sum[r] = 0;
  }
  clear(w.stage + kPanel * d, d);
}

// One row of scores: columns are keys [0, n) of the row block's key range.
template <class Element>
struct ScoreRow {
  float* score = nullptr;
  Element* weight = nullptr;  // may be the scores' own memory
  int n = 0;
  Range visible{0, 0};          // columns
  float scale = 0;              // of the scores, to base 2
  const float* bias = nullptr;  // null = none
  float bias_scale = 0;
};

// What bf16 rounding took from the heavy keys of a row.
struct Residues {
  int n = 0;
  int column[kMaxHeavy] = {};
  float value[kMaxHeavy] = {};
};

// Keys of columns [begin, end) whose weight exceeds `threshold`; fewer than 1 / kHeavy by construction.
template <class S = Simd>
inline void find_residues(const ScoreRow<std::uint16_t>& row, Range columns, float scale, float shift, float threshold,
                          Residues& found) {
  for (int j = columns.begin; j < columns.end; j += S::kLanes) {
    const auto rounded = S::load_bf16(row.weight + j);
    unsigned heavy = S::greater_mask(rounded, S::set1(threshold));
    if (heavy == 0) continue;
    const auto exact = S::exp2(S::fma(S::load(row.score + j), S::set1(scale), S::set1(shift)));
    alignas(64) float residue[S::kLanes];
    S::store(residue, S::sub(exact, rounded));
    for (; heavy != 0 && found.n < kMaxHeavy; heavy &= heavy - 1) {
      const int lane = __builtin_ctz(heavy);
      found.column[found.n] = j + lane;
      found.value[found.n++] = residue[lane];
    }
  }
}

// Scores to weights; returns the factor that the row's accumulators need (1 almost always).
// Weights of hidden keys are exactly 0.
template <class Element>
inline float softmax_row(const ScoreRow<Element>& row, float& max, float& sum, Residues& residues) {
  constexpr int kLanes = Simd::kLanes;
  float* s = row.score;
  residues.n = 0;
  if (row.visible.empty()) {
    clear(row.weight, row.n);
    return 1.0f;
  }
  const int begin = row.visible.begin / kPanel * kPanel, end = round_up(row.visible.end, kPanel);
  float scale = row.scale;
  if (row.bias != nullptr) {
    const auto a = Simd::set1(scale), b = Simd::set1(row.bias_scale);
    for (int j = begin; j < end; j += kLanes)
      Simd::store(s + j, Simd::fma(Simd::load(s + j), a, Simd::mul(Simd::load_unaligned(row.bias + j), b)));
    scale = 1.0f;
  }
  for (int j = begin; j < row.visible.begin; ++j) s[j] = kEmptyLse;
  for (int j = row.visible.end; j < end; ++j) s[j] = kEmptyLse;

  auto top = Simd::load(s + begin);
  for (int j = begin + kLanes; j < end; j += kLanes) top = Simd::max(top, Simd::load(s + j));
  const float tile_max = scale * Simd::reduce_max(top);
  float factor = 1.0f;
  if (!(tile_max <= max)) {
    factor = max == kEmptyLse ? 0.0f : Simd::exp2_scalar(max - tile_max);
    max = tile_max;
  }
  // Visible keys whose scores are all -inf weigh nothing.
  const float shift = max == kEmptyLse ? 0.0f : -max;
  auto total = Simd::zero();
  for (int j = begin; j < end; j += kLanes) {
    const auto x = Simd::exp2(Simd::fma(Simd::load(s + j), Simd::set1(scale), Simd::set1(shift)));
    total = Simd::add(total, x);
    Simd::store_element(row.weight + j, x);
  }
  clear(row.weight, begin);
  clear(row.weight + end, row.n - end);
  sum = sum * factor + Simd::reduce_add(total);
  if constexpr (sizeof(Element) == 2) {
    const float threshold = kHeavy * sum;
    // The tile's heaviest key weighs exp2(tile_max + shift), 1 when it leads the row.
    if (threshold < 1.0f && Simd::exp2_scalar(tile_max + shift) > threshold)
      find_residues(row, {begin, end}, scale, shift, threshold, residues);
  }
  return factor;
}

// Bias of one row from rel_logits, along the keys: out[j] belongs to distance dist - j.
inline void logits_row(const KernelArgs& args, std::int64_t token, int head, int dist, int n, float* out) {
  const Problem& p = args.problem;
  const std::int64_t base = token * p.strides.rel_logits_token + head * p.strides.rel_logits_head;
  const auto* data =
      static_cast<const std::byte*>(args.tensors.rel_logits) + base * static_cast<std::int64_t>(size_of(p.rel_logits_dtype));
  for (int j = 0; j < n;) {
    const std::int64_t last = bias_index(std::int64_t{dist} - j - (Simd::kLanes - 1), p.rel_zero, p.rel_extent);
    const std::int64_t first = bias_index(std::int64_t{dist} - j, p.rel_zero, p.rel_extent);
    if (j + Simd::kLanes <= n && first - last == Simd::kLanes - 1 && p.band.contains(dist - j) &&
        p.band.contains(dist - j - (Simd::kLanes - 1))) {
      Simd::V x = Simd::zero();
      if (p.rel_logits_dtype == DType::kFloat32) x = Simd::load_unaligned(reinterpret_cast<const float*>(data) + last);
      if (p.rel_logits_dtype == DType::kBFloat16) x = Simd::load_bf16(reinterpret_cast<const std::uint16_t*>(data) + last);
      if (p.rel_logits_dtype == DType::kFloat16) x = Simd::load_fp16(reinterpret_cast<const std::uint16_t*>(data) + last);
      Simd::store_unaligned(out + j, Simd::reverse(x));
      j += Simd::kLanes;
    } else {
      out[j] = p.band.contains(dist - j) ? load_float(data, p.rel_logits_dtype, first) : 0.0f;
      ++j;
    }
  }
}

// Packed rel_proj column of a distance. Far outside the band all columns are alike, so distances are brought near it.
inline int proj_shift(const PackedProj& proj, Range distances) {
  if (distances.begin >= proj.exact.end) return distances.begin - proj.exact.end;
  if (distances.end <= proj.exact.begin) return distances.end - proj.exact.begin;
  return 0;
}

template <class Matrix>
inline void bias_block(Worker<typename Matrix::Element>& w, int row, int n_rows, Range keys, const float** row_bias) {
  using Element = typename Matrix::Element;
  const KernelArgs& args = w.args;
  const Range tokens = w.tokens_of(row, n_rows);
  if (args.problem.bias == BiasMode::kLogits) {
    for (int r = 0; r < n_rows; ++r) {
      float* out = w.bias + static_cast<std::ptrdiff_t>(r) * w.layout.bias_ld;
      const int token = w.token_of(row + r);
      logits_row(args, w.first_token + token, w.head_of(row + r), q_pos(token, w.lengths) - keys.begin, keys.size(), out);
      row_bias[r] = out;
    }
    return;
  }
  // rel x (a slice of rel_proj): columns run against the distance, so each token's row is the same strip shifted by one.
  const PackedProj& proj = args.proj;
  const Range distances = rectangle_distances(tokens, keys, w.lengths);
  const int shift = proj_shift(proj, distances);
  const int begin = (proj.dist_max - (distances.end - 1 - shift)) / kPanel * kPanel;
  const int end = proj.dist_max - (distances.begin - shift) + 1;
  Gemm<Element> g;
  g.m = n_rows;
  g.n = round_up(end - begin, kKeyStep);
  g.k = w.layout.d_rel_padded;
  g.a = w.rel + static_cast<std::ptrdiff_t>(row) * g.k;
  g.lda = g.k;
  g.b_panel = static_cast<long>(g.k) * kPanel;
  g.b = static_cast<const Element*>(proj.data) + (begin / kPanel) * g.b_panel;
  g.c = w.bias;
  g.ldc = w.layout.bias_ld;
  Matrix::gemm(g);
  for (int r = 0; r < n_rows; ++r) {
    const int dist = q_pos(w.token_of(row + r), w.lengths) - keys.begin - shift;
    row_bias[r] = w.bias + static_cast<std::ptrdiff_t>(r) * w.layout.bias_ld + (proj.dist_max - dist - begin);
  }
}

// Keys of the tile that are packed, and where.
struct PackedTile {
  Range keys;  // multiples of kKeyStep, absolute
};

// acc += factor x the V row of packed key `key`.
template <class S = Simd>
inline void add_key(const Worker<std::uint16_t>& w, const PackedTile& tile, int key, float factor, float* acc) {
  const std::uint16_t* v = w.v + static_cast<std::ptrdiff_t>(key / 2) * 2 * kPanel;
  for (int d = 0; d < w.layout.d_padded; d += kPanel, v += static_cast<std::ptrdiff_t>(tile.keys.size()) * kPanel)
    S::store(acc + d, S::fma(S::load_pair_half(v, key % 2), S::set1(factor), S::load(acc + d)));
}

// Scores, weights and output of rows [row, row + n_rows) of the item against a packed key tile.
template <class Matrix>
inline void row_block(Worker<typename Matrix::Element>& w, int row, int n_rows, const PackedTile& tile) {
  using Element = typename Matrix::Element;
  const KernelArgs& args = w.args;
  const Problem& p = args.problem;
  const Range tokens = w.tokens_of(row, n_rows);
  const Range seen = intersect(visible_keys(tokens, w.lengths, p.visible), tile.keys);
  if (seen.empty()) return;
  const Range keys{seen.begin / kKeyStep * kKeyStep, round_up(seen.end, kKeyStep)};
  const TileClass kind = classify(tokens, keys, w.lengths, p.visible, p.band);
  const int d = w.layout.d_padded, offset = keys.begin - tile.keys.begin;

  Gemm<Element> g;
  g.m = n_rows;
  g.n = keys.size();
  g.k = d;
  g.a = w.q + static_cast<std::ptrdiff_t>(row) * d;
  g.lda = d;
  g.b_panel = static_cast<long>(d) * kPanel;
  g.b = w.k + (offset / kPanel) * g.b_panel;
  g.c = w.score;
  g.ldc = w.layout.score_ld;
  Matrix::gemm(g);

  const float* row_bias[kMaxRowBlock] = {};
  if (kind.biased && p.bias != BiasMode::kNone) bias_block<Matrix>(w, row, n_rows, keys, row_bias);

  const float scale = static_cast<float>(p.softmax_scale * static_cast<double>(kLog2E));
  for (int r = 0; r < n_rows; ++r) {
    ScoreRow<Element> s;
    s.score = w.score + static_cast<std::ptrdiff_t>(r) * w.layout.score_ld;
    s.weight = w.weight + r * w.weight_ld;
    s.n = keys.size();
    s.visible = {0, keys.size()};
    s.scale = scale;
    const int token = w.token_of(row + r);
    if (kind.masked) {
      const Range visible = intersect(visible_keys({token, token + 1}, w.lengths, p.visible), keys);
      s.visible = visible.empty() ? Range{0, 0} : Range{visible.begin - keys.begin, visible.end - keys.begin};
    }
    s.bias = row_bias[r];
    s.bias_scale = p.bias == BiasMode::kFused && p.has_rel_scale
                       ? kLog2E * args.tensors.rel_scale[(w.first_token + token) * p.strides.rel_scale_token]
                       : kLog2E;
    Residues residues;
    const float factor = softmax_row(s, w.max[row + r], w.sum[row + r], residues);
    float* acc = w.acc + static_cast<std::ptrdiff_t>(row + r) * d;
    if (factor != 1.0f)
      for (int i = 0; i < d; i += Simd::kLanes) Simd::store(acc + i, Simd::mul(Simd::load(acc + i), Simd::set1(factor)));
    if constexpr (sizeof(Element) == 2)
      for (int i = 0; i < residues.n; ++i) add_key(w, tile, offset + residues.column[i], residues.value[i], acc);
  }

  Gemm<Element> o;
  o.m = n_rows;
  o.n = d;
  o.k = keys.size();
  o.a = w.weight;
  o.lda = w.weight_ld;
  o.b_panel = static_cast<long>(tile.keys.size()) * kPanel;
  o.b = w.v + static_cast<std::ptrdiff_t>(offset) * kPanel;
  o.c = w.acc + static_cast<std::ptrdiff_t>(row) * d;
  o.ldc = d;
  o.accumulate = true;
  Matrix::gemm(o);
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
    const bool empty = w.sum[r] == 0.0f;
    const auto inverse = Simd::set1(empty ? 0.0f : 1.0f / w.sum[r]);
    for (int i = 0; i < d; i += Simd::kLanes) Simd::store(acc + i, Simd::mul(Simd::load(acc + i), inverse));
    if (empty) clear(acc, d);
    const float lse = empty ? kEmptyLse : kLn2 * w.max[r] + __builtin_logf(w.sum[r]);
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

template <class Matrix>
inline void run_item(const KernelArgs& args, const WorkItem& item, void* scratch) {
  using Element = typename Matrix::Element;
  Worker<Element> w = make_worker<Element>(args, item, scratch);
  begin_item(w);
  const Problem& p = args.problem;
  const Range tokens = w.tokens_of(0, item.n_rows);
  const Range seen = visible_keys(tokens, w.lengths, p.visible);
  const int d = w.layout.d_padded;
  const RowSource<Element> source{p.dtype, p.head_dim, d, w.stage, w.stage + kPanel * d};
  for (int t = item.tile_begin; t < item.tile_end; ++t) {
    const Range needed = intersect(seen, {t * args.tile_keys, (t + 1) * args.tile_keys});
    if (needed.empty()) continue;
    const PackedTile tile{{needed.begin / kKeyStep * kKeyStep, round_up(needed.end, kKeyStep)}};
    const int n_keys = tile.keys.size(), before = needed.begin - tile.keys.begin;
    for (int i = 0; i < n_keys; ++i) w.k_rows[i] = w.v_rows[i] = nullptr;  // keys nobody sees count as zeros
    find_rows(args, item, needed, w.k_rows + before, w.v_rows + before);
    pack_keys(source, w.k_rows, n_keys, w.k);
    pack_values(source, w.v_rows, n_keys, w.v);
    for (int row = 0; row < item.n_rows; row += Matrix::kRowBlock)
      row_block<Matrix>(w, row, min_of(Matrix::kRowBlock, item.n_rows - row), tile);
  }
  end_item(w);
}

}  // namespace
}  // namespace flashrel::cpu
