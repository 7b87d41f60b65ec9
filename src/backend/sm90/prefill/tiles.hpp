// Shapes and addresses of one tile: which packed row a warp's row is, where a key lies in shared memory, how a key tile is cut
// into TMA boxes. Host + device; tested by brute force in tiles_test.cpp.
#pragma once

#include <cstdint>
#include <numeric>

#include "backend/sm90/tiles.hpp"
#include "base/host_device.hpp"
#include "base/int_math.hpp"
#include "index/distance.hpp"
#include "index/swizzle.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kTileRows = 128;  // packed rows (index/rows.hpp) of one work item
inline constexpr int kTileKeys = 128;
inline constexpr int kStages = 2;  // of K and of V
// proj^T stays in shared memory: what the tiles leave of 227 KiB, less its zero rows (shared.cuh asserts it).
inline constexpr std::int64_t kMaxExtent = 1664;

// ---------------------------------------------------------------- rows
// Eight consumer warps of 16 rows each. The rows of a warp are tokens 8 apart, so that one warp's biases are the same
// fragments shifted by whole blocks of 8 keys (shear.hpp):
//   row r of warp w = token w + 8 * (r / group), head r % group
inline constexpr int kWarpRows = 16;
inline constexpr int kConsumerWarps = kTileRows / kWarpRows;

FLASHREL_HD constexpr int warp_row(int warp, int row, int group_log2) {
  return ((warp + kConsumerWarps * (row >> group_log2)) << group_log2) + (row & ((1 << group_log2) - 1));
}

// A lane of a consumer warp holds 32 columns of a tile: 8 b + i of its own origin, bit 2 b + i of a mask (b < 16, i < 2).
// Those inside `columns`, which count from the lane's first.
FLASHREL_HD constexpr std::uint32_t lane_columns_below(int column) {
  if (column <= 0) return 0;
  const int n = min_of(32, column / 8 * 2 + min_of(column % 8, 2));
  return ~std::uint32_t{0} >> (32 - n);
}
FLASHREL_HD constexpr std::uint32_t lane_columns(Range columns) {
  return lane_columns_below(columns.end) & ~lane_columns_below(columns.begin);
}

// ---------------------------------------------------------------- shared memory
// LAYOUT. K and V: backend/sm90/tiles.hpp. Q [dim / 64][packed row][64], in the same swizzle; rel [packed row][16], not
// swizzled.
inline constexpr int kKvTileBytes = kTileKeys / kKeysPerGroup * kKeyGroupBytes;
inline constexpr int kQLineBytes = kTileRows * kLineBytes;
inline constexpr int kQTileBytes = kLinesPerRow * kQLineBytes;
inline constexpr int kRelTileBytes = kTileRows * kRelRowBytes;

FLASHREL_HD constexpr int q_offset_bytes(int row, int line, int chunk) {
  return line * kQLineBytes + row * kLineBytes + swizzled_chunk(row, chunk) * kChunkBytes;
}

// ---------------------------------------------------------------- boxes
// A key tile is loaded as boxes of gcd(page_size, 128) keys: no box crosses a page, and all have the size that the tensor map
// fixes. page_size is a multiple of 8, so a tile has at most 16.
constexpr int box_keys(int page_size) { return std::gcd(page_size, kTileKeys); }

struct Box {
  int entry = 0, slot = 0;  // of the block table; first slot inside the page
  bool needed = false;      // holds a key of `seen`
  constexpr bool operator==(const Box&) const = default;
};

// Box `i` of key tile `tile`; `seen` = keys that some row of the sequence sees.
FLASHREL_HD constexpr Box tile_box(int tile, int i, int keys, const FastDiv& page_size, Range seen) {
  const int key = tile * kTileKeys + i * keys;
  const int entry = page_size.quotient(key);
  return {entry, key - entry * static_cast<int>(page_size.divisor), !intersect({key, key + keys}, seen).empty()};
}

}  // namespace flashrel::sm90::prefill
