// The tiled online softmax, written once for every instruction set.
// Included by isa/<name>.cpp only, after the unit's `Simd` and its matrix type; everything has internal linkage.
//
// A work item is a row tile (packed rows of one sequence and KV head) times a run of key tiles. For each key tile the
// visible keys are packed once and shared by all row blocks of the tile. The work then goes in steps of one row block times
// kStepKeys keys: scores, weights, weights x V onto the block's accumulators.
// Every row's arithmetic depends on the row alone (its keys, 16 at a time by absolute position), never on the row
// tile, the neighbours or the thread.
#pragma once

#include "backend/cpu/bias.hpp"
#include "backend/cpu/gemm.hpp"
#include "backend/cpu/worker.hpp"
#include "index/ranges.hpp"

namespace flashrel::cpu {
namespace {

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
