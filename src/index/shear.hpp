// The shear between keys and entries of L: along a run of keys the index falls by one a key,
//   index(key) = q_pos - key + rel_zero,      key first_key + c reads index first_index - c.
// A run that lies wholly outside [0, extent) may be moved, as long as it stays outside on the same side: then a table with
// n_keys edge entries on both sides (zeros, or copies of the nearest entry) can be read without any further check.
#pragma once

#include <cstdint>

#include "base/int_math.hpp"
#include "index/distance.hpp"

namespace flashrel {

// Index at the first key of a run of n_keys, moved into [-1, extent + n_keys - 1]: every index of the run is then inside
// [-n_keys, extent + n_keys).
FLASHREL_HD constexpr int first_index(int q_pos, int first_key, std::int64_t rel_zero, std::int64_t extent, int n_keys) {
  return static_cast<int>(clamp_to<std::int64_t>(rel_zero + q_pos - first_key, -1, extent + n_keys - 1));
}

// Whether an index reads L, and which entry: edge "zero" reads inside only, edge "clamp" reads the nearest entry.
FLASHREL_HD constexpr bool reads_entry(int index, int extent, bool clamped) {
  return clamped || (index >= 0 && index < extent);
}
FLASHREL_HD constexpr int nearest_entry(int index, int extent) { return clamp_to(index, 0, extent - 1); }

// First entry of a window of at most n_keys entries that holds nearest_entry of every index of the run
// [first - n_keys + 1, first].
FLASHREL_HD constexpr int window_start(int first, int extent, int n_keys) {
  return clamp_to(first - (n_keys - 1), 0, max_of(extent - n_keys, 0));
}

}  // namespace flashrel
