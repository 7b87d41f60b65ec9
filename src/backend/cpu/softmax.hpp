// One row of scores to weights: bias, mask, maximum, exp2, sum.
// Included by isa/<name>.cpp only, through kernel.hpp; everything has internal linkage.
//
// Scores live in base 2: x = log2(e) * score. A row's heaviest key always weighs exactly 1, so that a row that one key
// dominates comes out as exact as its values although weights are rounded to bf16. What rounding took from keys that hold
// more than kHeavy of their row is added back in float32: a few such keys would otherwise decide a row's error by luck.
#pragma once

#include "backend/cpu/pack.hpp"
#include "index/softmax_state.hpp"

namespace flashrel::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
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
inline void clear(Element* data, std::ptrdiff_t n) {
  std::memset(static_cast<void*>(data), 0, static_cast<std::size_t>(n) * sizeof(Element));
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
  } else if (!(scale > 0.0f)) {  // below, the maximum is taken before the scale is applied, and hidden scores are -inf
    for (int j = begin; j < end; j += kLanes) Simd::store(s + j, Simd::mul(Simd::load(s + j), Simd::set1(scale)));
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

}  // namespace
}  // namespace flashrel::cpu
