// Which keys a run of query tokens sees, and what a rectangle of tokens x keys must do.
//
// The distances inside a rectangle of tokens [t0, t1) and keys [k0, k1) are all integers of
//   [q_pos(t0) - (k1 - 1), q_pos(t1 - 1) - k0 + 1)
// so one range comparison answers each question exactly.
#pragma once

#include "base/int_math.hpp"
#include "index/distance.hpp"

namespace flashrel {

// Keys that the row at a position sees.
FLASHREL_HD constexpr Range visible_keys_at(int position, Lengths lengths, Range visible) {
  return intersect({position - (visible.end - 1), position - visible.begin + 1}, {0, lengths.kv_len});
}

// Keys that at least one of the tokens sees.
FLASHREL_HD constexpr Range visible_keys(Range tokens, Lengths lengths, Range visible) {
  if (tokens.empty() || visible.empty()) return {0, 0};
  const Range keys{q_pos(tokens.begin, lengths) - (visible.end - 1), q_pos(tokens.end - 1, lengths) - visible.begin + 1};
  return intersect(keys, {0, lengths.kv_len});
}

// Keys that every one of the tokens sees.
FLASHREL_HD constexpr Range full_keys(Range tokens, Lengths lengths, Range visible) {
  if (tokens.empty() || visible.empty()) return {0, 0};
  const Range keys{q_pos(tokens.end - 1, lengths) - (visible.end - 1), q_pos(tokens.begin, lengths) - visible.begin + 1};
  return intersect(keys, {0, lengths.kv_len});
}

// Distances inside the rectangle; empty when it holds no pair.
FLASHREL_HD constexpr Range rectangle_distances(Range tokens, Range keys, Lengths lengths) {
  if (tokens.empty() || keys.empty()) return {0, 0};
  return {q_pos(tokens.begin, lengths) - (keys.end - 1), q_pos(tokens.end - 1, lengths) - keys.begin + 1};
}

// Key tiles (absolute multiples of tile_keys) that a range of keys touches.
FLASHREL_HD constexpr Range key_tiles(Range keys, int tile_keys) {
  if (keys.empty()) return {0, 0};
  return {keys.begin / tile_keys, ceil_div(keys.end, tile_keys)};
}

// Key tiles that lie wholly inside a range of keys.
FLASHREL_HD constexpr Range inner_tiles(Range keys, int tile_keys) {
  return keys.empty() ? Range{0, 0} : Range{ceil_div(keys.begin, tile_keys), keys.end / tile_keys};
}

// The part of a range of keys that stands in one tile, counted from the tile's first key.
FLASHREL_HD constexpr Range keys_in_tile(Range keys, int tile, int tile_keys) {
  const int first = tile * tile_keys;
  const Range in_tile = intersect({first, first + tile_keys}, keys);
  if (in_tile.empty()) return {0, 0};
  return {in_tile.begin - first, in_tile.end - first};
}

// What one rectangle of tokens x keys needs. Keys past kv_len count as hidden.
struct TileClass {
  bool skipped = true;  // no visible pair
  bool masked = false;  // some pair is hidden: the mask must run
  bool biased = false;  // some visible pair lies in the band: the bias must be added
  constexpr bool operator==(const TileClass&) const = default;
};

FLASHREL_HD constexpr TileClass classify(Range tokens, Range keys, Lengths lengths, Range visible, Range band) {
  const Range real = intersect(keys, {0, lengths.kv_len});
  const Range seen = intersect(rectangle_distances(tokens, real, lengths), visible);
  if (real.empty() || seen.empty()) return {};
  const Range full = full_keys(tokens, lengths, visible);
  return {false, !(full.begin <= keys.begin && keys.end <= full.end), !intersect(seen, band).empty()};
}

}  // namespace flashrel
