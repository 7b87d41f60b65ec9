// Shared-memory tiles: rows of 16-bit elements, cut into chunks of 8 (16 bytes), the chunks of a row permuted so that
// eight neighbouring rows at one column (an ldmatrix) touch all 32 banks. Rows are at least 8 chunks (128 bytes) long.
#pragma once

#include "base/host_device.hpp"

namespace flashrel {

inline constexpr int kChunkElems = 8;
inline constexpr int kChunkBytes = 16;

FLASHREL_HD constexpr int swizzled_chunk(int row, int chunk) { return chunk ^ (row & 7); }

// Byte offset of a chunk inside a tile whose rows have `row_elems` elements.
FLASHREL_HD constexpr int tile_offset_bytes(int row, int chunk, int row_elems) {
  return row * row_elems * 2 + swizzled_chunk(row, chunk) * kChunkBytes;
}

// The offset (or address, in a tile aligned to its row length) of chunk c ^ delta, from that of chunk c of the same row.
// For an even delta and c < 2 this is chunk c + delta.
FLASHREL_HD constexpr unsigned flip_chunk(unsigned address, int delta) {
  return address ^ static_cast<unsigned>(delta * kChunkBytes);
}

}  // namespace flashrel
