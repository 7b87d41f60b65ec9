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

inline constexpr int kTileRowsLog2 = 7, kTileRows = 1 << kTileRowsLog2;  // packed rows (index/rows.hpp) of one work item
inline constexpr int kStages = 2;                                        // of K and of V

// rel and proj^T come in `steps` of kRelDim values: one, or two where d_rel is larger.
constexpr int rel_steps(int d_rel) { return d_rel <= kRelDim ? 1 : 2; }
// Keys of a tile. Beside two steps a tile of 128 keys has neither the registers (spills in every form tried) nor, for models'
// extents, the shared memory. `steps` is 0 where the bias is not fused.
inline constexpr int kMaxTileKeys = 128;
constexpr int tile_keys_of(int steps) { return steps < 2 ? kMaxTileKeys : 96; }

// ---------------------------------------------------------------- rows
// Eight consumer warps of 16 rows each. The rows of a warp are tokens 8 apart, so that one warp's biases are the same
// fragments shifted by whole blocks of 8 keys (shear.hpp):
//   row r of warp w = token w + 8 * (r / group), head r % group
inline constexpr int kWarpRows = 16;
inline constexpr int kConsumerWarps = kTileRows / kWarpRows;

FLASHREL_HD constexpr int warp_row(int warp, int row, int group_log2) {
  return ((warp + kConsumerWarps * (row >> group_log2)) << group_log2) + (row & ((1 << group_log2) - 1));
}

// A lane of a consumer warp holds up to 32 columns of a tile: 8 b + i of its own origin, bit 2 b + i of a mask (b < 16, i < 2).
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
// LAYOUT. K and V: backend/sm90/tiles.hpp. Q [dim / 64][packed row][64], in the same swizzle; rel [packed row][16 or 32], not
// swizzled.
inline constexpr int kQLineBytes = kTileRows * kLineBytes;
FLASHREL_HD constexpr int q_tile_bytes(int head_dim) { return lines_per_row(head_dim) * kQLineBytes; }
FLASHREL_HD constexpr int kv_tile_bytes(int head_dim, int tile_keys) {
  return tile_keys / kKeysPerGroup * key_group_bytes(head_dim);
}
FLASHREL_HD constexpr int rel_tile_bytes(int steps) { return kTileRows * steps * kRelRowBytes; }

inline constexpr int kControlBytes = 1024;  // barriers and jobs (shared.cuh)
// Without what a bias needs.
constexpr int shared_bytes(int head_dim, int tile_keys) {
  return q_tile_bytes(head_dim) + 2 * kStages * kv_tile_bytes(head_dim, tile_keys) + kControlBytes;
}

FLASHREL_HD constexpr int q_offset_bytes(int row, int line, int chunk) {
  return line * kQLineBytes + row * kLineBytes + swizzled_chunk(row, chunk) * kChunkBytes;
}

// ---------------------------------------------------------------- boxes
// A key tile is loaded as boxes of gcd(page_size, kBoxKeys) keys: no box crosses a page, and all have the size that the tensor
// map fixes. page_size is a multiple of 8, so a tile has at most 16. Several small copies, one a lane, arrive sooner than a
// large one.
inline constexpr int kBoxKeys = 16;  // tiles begin at any multiple of it where there is a window (job.hpp)
constexpr int box_keys(int page_size) { return std::gcd(page_size, kBoxKeys); }

struct Box {
  int entry = 0, slot = 0;  // of the block table; first slot inside the page
  bool needed = false;      // holds a key of `seen`
  constexpr bool operator==(const Box&) const = default;
};

// The box of `keys` keys from `key` on; `seen` = keys that some row of the sequence sees. Both count from first_key.
FLASHREL_HD constexpr Box box_at(int key, int keys, const FastDiv& page_size, Range seen, int first_key) {
  const int entry = page_size.quotient(first_key + key);
  const int slot = first_key + key - entry * static_cast<int>(page_size.divisor);
  return {entry, slot, !intersect({key, key + keys}, seen).empty()};
}

}  // namespace flashrel::sm90::prefill
