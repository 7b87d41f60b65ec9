// The bias of a 16-row slice on the matrix units: which rows of the transposed projection feed which block of scores.
//
// proj^T lives in shared memory as rows of 16 elements (32 where d_rel is more than 16), row i = rel_proj[:, i], with kProjPad
// rows on either side: zeros, or with rel_edge = clamp the outermost rows again.
//
// Fragment f of a slice is one mma.sync.m16n8k16, or two that add up: A = the slice's rel rows, B = eight rows of proj^T,
// column c of them
//   i(f, c) = origin + warp - 8 f - c          origin = q_pos(first token) + rel_zero - first key of the tile
// The slice's row r belongs to token warp + 8 s, s = r / group; its bias at key 8 b + c of the tile is entry
//   (q_pos(first token) + warp + 8 s) - (first key + 8 b + c) + rel_zero = i(b - s, c)
// so block b of row r is fragment b - s: with group 16 all rows take fragment b, with group 8 the lower eight rows take b and
// the upper eight b - 1, with group 4 the four quarters take b, b - 1, b - 2, b - 3.
#pragma once

#include "backend/sm90/launch_kernel.hpp"
#include "backend/sm90/prefill/tiles.hpp"
#include "base/int_math.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kBlockKeys = 8;

// Fragments of a tile are first_fragment(group) ... its blocks - 1.
FLASHREL_HD constexpr int first_fragment(int group) { return 1 - kWarpRows / group; }
FLASHREL_HD constexpr int fragment_of(int block, int row, int group) { return block - row / group; }

// A tile whose pairs all lie on one side of the table reads nothing but the rows around it: its origin is moved to where they
// begin.
inline constexpr int kProjPad = 160;
inline constexpr int kOriginBelow = -32;  // with this origin the largest entry is -1
FLASHREL_HD constexpr int clamped_origin(long long origin, int extent) {
  return static_cast<int>(clamp_to<long long>(origin, kOriginBelow, extent + kMaxTileKeys - 1));
}

FLASHREL_HD constexpr int proj_entry(int origin, int warp, int fragment, int column) {
  return origin + warp - kBlockKeys * fragment - column;
}

FLASHREL_HD constexpr int proj_rows(int extent) { return extent + 2 * kProjPad; }

// Entries of proj^T (negative ones are rows before the table) that pairs at `dists` read: their own, and those on the way to
// the table, because clamped_origin moves tiles there. Others are read for hidden pairs only and may hold anything.
constexpr Range proj_entries(Range dists, std::int64_t rel_zero, int extent) {
  return {static_cast<int>(clamp_to<std::int64_t>(dists.begin + rel_zero, -kProjPad, extent)),
          static_cast<int>(clamp_to<std::int64_t>(dists.end + rel_zero, 0, extent + kProjPad))};
}

// Shared memory of a CTA, and the largest extent that fits.
constexpr int fused_bytes(int head_dim, int steps, int extent) {
  return shared_bytes(head_dim, tile_keys_of(steps)) + rel_tile_bytes(steps) + proj_rows(extent) * steps * kRelRowBytes;
}
constexpr int max_extent(int head_dim, int steps) {
  return (kMaxSharedBytes - fused_bytes(head_dim, steps, 0)) / (steps * kRelRowBytes);
}

}  // namespace flashrel::sm90::prefill
