// Shapes and addresses of the decode kernel: operands are swapped, so keys are the 64 rows of a matrix product and the packed
// query rows (index/rows.hpp) its columns, in steps of 8. Host + device; tested by brute force in tiles_test.cpp.
#pragma once

#include <cstdint>
#include <numeric>

#include "backend/sm90/tiles.hpp"
#include "base/host_device.hpp"
#include "base/int_math.hpp"
#include "base/types.hpp"

namespace flashrel::sm90::decode {

// How the bias of a kernel instance comes. A wide one has d_rel 17 ... 32, two k steps of a product.
enum class Bias { kNone, kFused, kWideFused, kLogits };
constexpr Bias bias_of(BiasMode mode, int d_rel) {
  if (mode == BiasMode::kNone) return Bias::kNone;
  if (mode == BiasMode::kLogits) return Bias::kLogits;
  return d_rel > kRelDim ? Bias::kWideFused : Bias::kFused;
}
FLASHREL_HD constexpr bool is_fused(Bias bias) { return bias == Bias::kFused || bias == Bias::kWideFused; }
FLASHREL_HD constexpr int rel_steps(Bias bias) { return bias == Bias::kWideFused ? 2 : bias == Bias::kFused ? 1 : 0; }

inline constexpr int kHeadDim = 128;
inline constexpr int kTileKeys = 64;
// Depth of the ring of tiles of K and V, 32 KB each: 96 KB in flight an SM are enough to read at full speed. A fifth stage
// where there is room for it gained 4 % on many short sequences and lost 2 % on windows.
FLASHREL_HD constexpr int stages(int rows, Bias bias) { return bias == Bias::kWideFused && rows > 16 ? 3 : 4; }

// ---------------------------------------------------------------- rows
// The kernel's instances, by their columns: a call takes the first that holds its packed rows.
inline constexpr int kInstanceRows[] = {8, 16, 32, 40, 64, 72};
inline constexpr int kMaxRows = 72;

constexpr int instance_rows(std::int64_t n_rows) {
  for (const int rows : kInstanceRows)
    if (n_rows <= rows) return rows;
  return 0;
}

// What the shared memory of an instance has room for: biases of so many tokens; rel_logits of so many rows.
FLASHREL_HD constexpr int max_tile_tokens(int rows) { return rows <= 32 ? rows : 18; }
inline constexpr int kMaxLogitsRows = 40, kMaxWideRows = 32;

// ---------------------------------------------------------------- shared memory
// LAYOUT. K and V: backend/sm90/tiles.hpp. Q [dim / 64][packed row][64], in the same swizzle; rel [step of 16][packed row]
// [16], not swizzled.
inline constexpr int kLinesPerRow = lines_per_row(kHeadDim), kKeyGroupBytes = key_group_bytes(kHeadDim);
inline constexpr int kKvTileBytes = kTileKeys / kKeysPerGroup * kKeyGroupBytes;

// ---------------------------------------------------------------- bias
// The entry of rel_proj for (token, key) of a tile is
//   origin + bias_entry(token, key)      origin = q_pos(token 0) + rel_zero - last key of the tile
// TMA reads entries from a multiple of 8 on (16 bytes: any other start is an illegal instruction), so a tile is given entries
// [bias_begin(origin), + bias_entries).
FLASHREL_HD constexpr int bias_entry(int token, int key) { return token + kTileKeys - 1 - key; }
FLASHREL_HD constexpr int bias_begin(int origin) { return origin & ~7; }
FLASHREL_HD constexpr int bias_entries(int rows) { return (kTileKeys - 1 + max_tile_tokens(rows) + 7 + 7) / 8 * 8; }

// ---------------------------------------------------------------- boxes
// A key tile is loaded as boxes of `keys` keys: no box crosses a page, and all have the size that the tensor map fixes.
// A box at the end of the keys or at a window's edge brings keys that nobody sees: where a sequence has few, boxes are small.
inline constexpr int kSmallBoxKeys = 16, kFewKeys = 2048;
constexpr int box_keys(int page_size, std::int64_t most_keys) {
  const int keys = std::gcd(page_size, kTileKeys);
  return most_keys <= kFewKeys ? min_of(keys, kSmallBoxKeys) : keys;
}

}  // namespace flashrel::sm90::decode
