// The tiled online softmax, written once for every instruction set.
// Included by isa/<name>.cpp only, after the unit's `Simd` and its matrix type; everything has internal linkage.
//
// A work item is a row tile (packed rows of one sequence and KV head) times a run of key tiles. For each key tile the
// visible keys are packed once and shared by all row blocks of the tile. The work then goes in steps of one row block times
// kStepKeys keys: scores, weights, weights x V onto the block's accumulators.
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

// Softmax state of one row between steps. The sum stays spread over 16 lanes until the item ends, and the maximum is looked
// for lane by lane, so that a step needs a horizontal reduction only when it raises the maximum.
struct RowState {
  float* max = nullptr;    // base 2
  float* sum = nullptr;    // [16]
  float* least = nullptr;  // a lower bound of the sum
};

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
  int n_rel_terms = 1;  // 2 when some rel term needs its second bf16
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

template <class Element>
inline void clear(Element* data, std::ptrdiff_t n) {
  std::memset(static_cast<void*>(data), 0, static_cast<std::size_t>(n) * sizeof(Element));
}

// rel of one row x rel_scale / softmax_scale as two bf16 terms, in the columns of the row's token among its 16 rows.
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
    const float value = factor * bf16_to_float(rel[e]);
    terms[e] = float_to_bf16(value);
    const float rest = value - bf16_to_float(terms[e]);
    terms[64 + e] = float_to_bf16(rest);
    if (rest != 0.0f) w.n_rel_terms = 2;
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
  int column[kMaxHeavy];
  float value[kMaxHeavy];
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
inline float softmax_row(const ScoreRow<Element>& row, const RowState& state, Residues& residues) {
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
  float factor = 1.0f;
  if (Simd::any_greater(Simd::mul(top, Simd::set1(scale)), Simd::set1(*state.max))) {
    const float raised = scale * Simd::reduce_max(top);
    factor = *state.max == kEmptyLse ? 0.0f : Simd::exp2_scalar(*state.max - raised);
    *state.max = raised;
    *state.least *= factor;
    for (int j = 0; j < kPanel; j += kLanes)
      Simd::store(state.sum + j, Simd::mul(Simd::load(state.sum + j), Simd::set1(factor)));
  }
  // Visible keys whose scores are all -inf weigh nothing.
  const float shift = *state.max == kEmptyLse ? 0.0f : -*state.max;
  auto total = Simd::load(state.sum);
  for (int j = begin; j < end; j += kLanes) {
    const auto x = Simd::exp2(Simd::fma(Simd::load(s + j), Simd::set1(scale), Simd::set1(shift)));
    total = Simd::add(total, x);
    Simd::store_element(row.weight + j, x);
  }
  Simd::store(state.sum, total);
  if (begin > 0) clear(row.weight, begin);
  if (end < row.n) clear(row.weight + end, row.n - end);
  if constexpr (sizeof(Element) == 2)
    // No key weighs more than 1: past a sum of 1 / kHeavy none is heavy.
    if (*state.least * kHeavy < 1.0f) {
      *state.least = Simd::reduce_add(total);
      find_residues(row, {begin, end}, scale, shift, kHeavy * *state.least, residues);
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

// Rows [row, row + n_rows) of the item times `keys`, at most kStepKeys of them, inside the packed tile.
struct Step {
  int row = 0, n_rows = 0;
  Range keys;
  TileClass kind;
};

template <class Element>
inline Gemm<Element> score_product(const Worker<Element>& w, const PackedTile& tile, const Step& step) {
  const PackedProj& proj = w.args.proj;
  const int d = w.layout.d_padded;
  Gemm<Element> g;
  g.m = step.n_rows;
  g.n = step.keys.size();
  g.k = d;
  g.a = w.q + static_cast<std::ptrdiff_t>(step.row) * d;
  g.lda = d;
  g.b_panel = static_cast<long>(d) * kPanel;
  g.b = w.k + (step.keys.begin - tile.keys.begin) / kPanel * g.b_panel;
  g.c = w.score;
  g.ldc = w.layout.score_ld;
  if (!step.kind.biased || !proj.direct) return g;
  const int shift = proj_shift(proj, rectangle_distances(w.tokens_of(step.row, step.n_rows), step.keys, w.lengths));
  g.bias.rel = w.rel_terms + static_cast<std::ptrdiff_t>(step.row) * kRelTerms;
  g.bias.rel_ld = kRelTerms;
  for (int i = 0; i < 2; ++i) {
    const int row = min_of(step.row + 16 * i, w.item.n_rows - 1) / 16 * 16;  // the second half may not exist
    const int dist = q_pos(w.token_of(row), w.lengths) - step.keys.begin - shift;
    g.bias.proj[i] = static_cast<const Element*>(proj.data) + 2 * static_cast<std::ptrdiff_t>(proj.dist_max - dist);
  }
  g.bias.proj_ld = 2 * static_cast<long>(proj.n_columns);
  g.bias.n_pairs = max_of(1, 8 / w.args.group);
  g.bias.n_terms = w.n_rel_terms;
  return g;
}

template <class Element>
inline Gemm<Element> output_product(const Worker<Element>& w, const PackedTile& tile, const Step& step) {
  const int d = w.layout.d_padded;
  Gemm<Element> g;
  g.m = step.n_rows;
  g.n = d;
  g.k = step.keys.size();
  g.a = w.weight;
  g.lda = w.weight_ld;
  g.b_panel = static_cast<long>(tile.keys.size()) * kPanel;
  g.b = w.v + static_cast<std::ptrdiff_t>(step.keys.begin - tile.keys.begin) * kPanel;
  g.c = w.acc + static_cast<std::ptrdiff_t>(step.row) * d;
  g.ldc = d;
  g.accumulate = true;
  return g;
}

// Weights of the step from its scores; accumulators follow a raised maximum.
template <class Matrix>
inline void softmax_step(Worker<typename Matrix::Element>& w, const PackedTile& tile, const Step& step) {
  using Element = typename Matrix::Element;
  const Problem& p = w.args.problem;
  const float* row_bias[kMaxRowBlock] = {};
  if (step.kind.biased && p.bias != BiasMode::kNone && !w.args.proj.direct)
    bias_block<Matrix>(w, step.row, step.n_rows, step.keys, row_bias);
  ScoreRow<Element> s;
  s.n = step.keys.size();
  s.visible = {0, s.n};
  s.scale = static_cast<float>(p.softmax_scale * static_cast<double>(kLog2E));
  for (int r = 0; r < step.n_rows; ++r) {
    s.score = w.score + static_cast<std::ptrdiff_t>(r) * w.layout.score_ld;
    s.weight = w.weight + r * w.weight_ld;
    const int token = w.token_of(step.row + r);
    if (step.kind.masked) {
      const Range visible = intersect(visible_keys({token, token + 1}, w.lengths, p.visible), step.keys);
      s.visible = visible.empty() ? Range{0, 0} : Range{visible.begin - step.keys.begin, visible.end - step.keys.begin};
    }
    s.bias = row_bias[r];
    s.bias_scale =
        p.has_rel_scale ? kLog2E * w.args.tensors.rel_scale[(w.first_token + token) * p.strides.rel_scale_token] : kLog2E;
    Residues residues;
    const float factor = softmax_row(s, w.state(step.row + r), residues);
    const int d = w.layout.d_padded;
    float* acc = w.acc + static_cast<std::ptrdiff_t>(step.row + r) * d;
    if (factor != 1.0f)
      for (int i = 0; i < d; i += Simd::kLanes) Simd::store(acc + i, Simd::mul(Simd::load(acc + i), Simd::set1(factor)));
    if constexpr (sizeof(Element) == 2)
      for (int i = 0; i < residues.n; ++i)
        add_key(w, tile, step.keys.begin - tile.keys.begin + residues.column[i], residues.value[i], acc);
  }
}

// All row blocks of the item against a packed key tile; a block's steps follow each other, so that its accumulators stay near.
template <class Matrix>
inline void attend_tile(Worker<typename Matrix::Element>& w, const PackedTile& tile) {
  const Problem& p = w.args.problem;
  for (int row = 0; row < w.item.n_rows; row += Matrix::kRowBlock) {
    Step step;
    step.row = row;
    step.n_rows = min_of(Matrix::kRowBlock, w.item.n_rows - row);
    const Range tokens = w.tokens_of(row, step.n_rows);
    const Range seen = intersect(visible_keys(tokens, w.lengths, p.visible), tile.keys);
    for (int key = seen.begin / kStepKeys * kStepKeys; key < seen.end; key += kStepKeys) {
      const Range keys = intersect(seen, {key, key + kStepKeys});
      step.keys = {keys.begin / kKeyStep * kKeyStep, round_up(keys.end, kKeyStep)};
      step.kind = classify(tokens, step.keys, w.lengths, p.visible, p.band);
      Matrix::gemm(score_product(w, tile, step));
      softmax_step<Matrix>(w, tile, step);
      Matrix::gemm(output_product(w, tile, step));
    }
  }
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
    attend_tile<Matrix>(w, tile);
  }
  end_item(w);
}

}  // namespace
}  // namespace flashrel::cpu
