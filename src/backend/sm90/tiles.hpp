// What tiles of both kernels share: the shape of a row, and where a key lies in shared memory. Host + device; tested by brute
// force in prefill/tiles_test.cpp and decode/tiles_test.cpp.
#pragma once

#include "base/host_device.hpp"
#include "index/swizzle.hpp"

namespace flashrel::sm90 {

inline constexpr int kRelDim = 16;  // d_rel, zero-padded: one k step of mma.sync
inline constexpr int kRelRowBytes = kRelDim * 2;

// LAYOUT. Rows are cut into lines of 64 elements = 128 bytes, stored in the 128-byte swizzle (index/swizzle.hpp).
//   K, V [key / 8][dim / 64][key % 8][64]
// With eight keys innermost any box of 8, 16, ... keys is one TMA copy and lands where the whole tile would put it.
inline constexpr int kLineElems = 64;
inline constexpr int kLineBytes = 128;
inline constexpr int kKeysPerGroup = 8;
inline constexpr int kGroupLineBytes = kKeysPerGroup * kLineBytes;  // from one line of a key to its next

FLASHREL_HD constexpr int lines_per_row(int head_dim) { return head_dim / kLineElems; }
// From one group of keys to the next.
FLASHREL_HD constexpr int key_group_bytes(int head_dim) { return lines_per_row(head_dim) * kGroupLineBytes; }
// Byte offset of 16 bytes (8 elements) of a key: chunk 0 ... 7 of a line.
FLASHREL_HD constexpr int kv_offset_bytes(int head_dim, int key, int line, int chunk) {
  return key / kKeysPerGroup * key_group_bytes(head_dim) + line * kGroupLineBytes + key % kKeysPerGroup * kLineBytes +
         swizzled_chunk(key, chunk) * kChunkBytes;
}

}  // namespace flashrel::sm90
