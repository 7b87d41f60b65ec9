// Positions and distances: the one definition of what a row may see and where the bias lives.
//
//   q_pos = i + kv_len - q_len        dist = q_pos - j
//
// Both visibility and the band are half-open ranges of distances, so every question about a tile is interval arithmetic.
// Lengths are below 2^30, so every position, distance and range end fits an int.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "base/int_math.hpp"
#include "base/types.hpp"

namespace flashrel {

inline constexpr int kMaxLength = 1 << 30;  // exclusive bound of q_len and kv_len
inline constexpr int kFar = 1 << 30;        // no distance reaches it

// Half-open range [begin, end) of keys, tiles, rows or distances; empty when begin >= end.
struct Range {
  int begin = 0, end = 0;

  FLASHREL_HD constexpr bool empty() const { return begin >= end; }
  FLASHREL_HD constexpr int size() const { return empty() ? 0 : end - begin; }
  FLASHREL_HD constexpr bool contains(int x) const { return begin <= x && x < end; }
  constexpr bool operator==(const Range&) const = default;
};

FLASHREL_HD constexpr Range intersect(Range a, Range b) { return {max_of(a.begin, b.begin), min_of(a.end, b.end)}; }

struct Lengths {
  int q_len = 0, kv_len = 0;
};

FLASHREL_HD constexpr int q_pos(int row_token, Lengths lengths) { return row_token + lengths.kv_len - lengths.q_len; }

// Distances that a row may see.
constexpr Range visible_distances(bool causal, std::int64_t window_left, std::int64_t window_right) {
  const auto bound = [](std::int64_t x) { return static_cast<int>(min_of<std::int64_t>(x, kFar - 1)); };
  Range visible{-kFar, kFar};
  if (window_left >= 0) visible.end = bound(window_left) + 1;
  if (window_right >= 0) visible.begin = -bound(window_right);
  if (causal) visible.begin = max_of(visible.begin, 0);
  return visible;
}

// Distances of visible pairs that lengths within the bounds allow.
constexpr Range possible_distances(Range visible, std::int64_t max_q_len, std::int64_t max_kv_len) {
  const auto bound = [](std::int64_t x) { return static_cast<int>(min_of<std::int64_t>(x, kFar)); };
  return intersect(visible, {1 - bound(max_q_len), bound(max_kv_len)});
}

// Distances whose bias is read from L: index = dist + rel_zero in [0, rel_extent), or everything when the edge clamps.
constexpr Range band_distances(std::int64_t rel_zero, std::int64_t rel_extent, RelEdge edge) {
  if (rel_extent <= 0) return {0, 0};
  if (edge == RelEdge::kClamp) return {-kFar, kFar};
  const auto bound = [](std::int64_t x) { return static_cast<int>(clamp_to<std::int64_t>(x, -kFar, kFar)); };
  return {bound(-rel_zero), bound(rel_extent - rel_zero)};
}

// Entry of L for a distance inside the band.
FLASHREL_HD constexpr std::int64_t bias_index(std::int64_t dist, std::int64_t rel_zero, std::int64_t rel_extent) {
  return clamp_to<std::int64_t>(dist + rel_zero, 0, rel_extent - 1);
}

}  // namespace flashrel
