// The algebra of partial softmax results over disjoint key sets.
//
// A part is (lse, out): lse = ln sum exp(score), out = its normalised output. The empty part is lse = -inf and is the
// neutral element; its out may hold anything. Merging is associative up to rounding, so parts are always merged in the
// order of their key ranges: same plan, same bits.
#pragma once

#include <cmath>
#include <limits>

#include "base/host_device.hpp"

namespace flashrel {

inline constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// Weight of a part once the largest lse is known; 0 for an empty part.
FLASHREL_HD float part_weight(float lse, float max_lse) { return lse == kEmptyLse ? 0.0f : expf(lse - max_lse); }

// lse of the merge from the largest lse and the sum of weights; -inf when there is nothing, NaN when a part is NaN.
FLASHREL_HD float merged_lse(float max_lse, float weight_sum) {
  return weight_sum == 0.0f ? kEmptyLse : max_lse + logf(weight_sum);
}

}  // namespace flashrel
