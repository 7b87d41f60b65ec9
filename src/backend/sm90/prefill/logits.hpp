// Mode logits: where TMA puts rel_logits in shared memory, and where a score finds its entry there.
//
// Row (token, head) of a tile needs the 128 entries of its own distances: key column j of the tile has entry
//   e(token, j) = first_index + token - (128 tile + j)          first_index = q_pos(first token) + rel_zero
// They are fetched as they lie, ascending, one box a token with all its heads. A box must start at a multiple of 16 bytes (the
// hardware faults otherwise), so the copy cannot do the whole shear. But the tokens of a warp stand 8 apart (tiles.hpp): all
// its rows miss that start by the same number of entries, and one box start serves them all:
//   box start = e(first token of the warp, 127) - shift,   shift = 0 ... entries of 16 bytes - 1, the same for all tiles of a
//   job column j of the warp's token s (its s-th) lies at entry  shift + 8 s + 127 - j  of its row
// What lies outside the tensor arrives as zeros.
//
// LAYOUT. A ring of slots of 16 rows, one slot a warp and tile in the order of the warps. Row r of a slot is row r of the warp;
// rows are so long that the eight rows that a warp reads at once lie in different banks. Host + device; logits_test.cpp.
#pragma once

#include <cstdint>

#include "backend/sm90/prefill/tiles.hpp"
#include "base/int_math.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kMaxRelZero = 1 << 29;
inline constexpr int kMaxLogitsSlots = 15;
inline constexpr int kLogitsBytes = 66 * 1024;  // what Q, K and V leave

struct LogitsRing {
  int row_entries = 0, row_bytes = 0, slot_bytes = 0, n_slots = 0;
};

constexpr LogitsRing logits_ring(int entry_bytes, int group_log2) {
  constexpr int kRowEntries[2][5] = {{256, 224, 176, 152, 136}, {256, 192, 160, 140, 132}};  // by 2 or 4 bytes, by group
  LogitsRing ring;
  ring.row_entries = kRowEntries[entry_bytes / 4][group_log2];
  ring.row_bytes = ring.row_entries * entry_bytes;
  ring.slot_bytes = kWarpRows * ring.row_bytes;
  ring.n_slots = min_of(kMaxLogitsSlots, kLogitsBytes / ring.slot_bytes);
  return ring;
}

// First entry of the boxes of a warp, and how far its rows lie behind that.
struct LogitsPlace {
  int start = 0, shift = 0;
};

// `unit`: entries of 16 bytes. A start far from the table is moved to where all is zero, so that it fits a coordinate.
// In 32 bits, because the loader has few registers: no position and no key reaches 2^30, and |rel_zero| < kMaxRelZero.
FLASHREL_HD constexpr LogitsPlace logits_place(int first_pos, int rel_zero, int warp, int tile, int extent, int unit) {
  const int entry = first_pos - tile * kMaxTileKeys + warp - (kMaxTileKeys - 1) + rel_zero;
  const int shift = entry & (unit - 1);
  constexpr int kFarBelow = -512;  // no row is longer
  return {clamp_to(entry - shift, kFarBelow, round_up(extent, unit)), shift};
}

// Entry of a row of a slot that key column `column` of warp row `row` takes.
FLASHREL_HD constexpr int logits_entry(int shift, int row, int column, int group_log2) {
  return shift + (row >> group_log2) * kConsumerWarps + kMaxTileKeys - 1 - column;
}

}  // namespace flashrel::sm90::prefill
