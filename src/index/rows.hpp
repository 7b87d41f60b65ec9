// PackGQA: the rows of one (sequence, KV head) are its tokens times the `group` query heads that share the KV head.
//   row = token * group + head_in_group          token counts from the start of the sequence
// Tiles cut rows, not tokens, so that any group works with any tile.
#pragma once

#include "base/int_math.hpp"
#include "index/distance.hpp"

namespace flashrel {

FLASHREL_HD constexpr int row_token(int row, int group) { return row / group; }
FLASHREL_HD constexpr int row_head(int row, int group, int kv_head) { return kv_head * group + row % group; }
FLASHREL_HD constexpr int packed_row(int token, int head_in_group, int group) { return token * group + head_in_group; }

// Tokens that a range of rows touches.
FLASHREL_HD constexpr Range row_tokens(Range rows, int group) { return {rows.begin / group, ceil_div(rows.end, group)}; }

// Number of row tiles of one (sequence, KV head). Packed rows stay below 2^31 - 1024 (api/validate).
FLASHREL_HD constexpr int row_tiles(int q_len, int group, int tile_rows) {
  return static_cast<int>(ceil_div<long long>(static_cast<long long>(q_len) * group, tile_rows));
}

// Rows of a tile in pairs: 8 rows whose tokens stand 8 after those of 8 others follow them directly, so that a block of 16
// rows needs the bias of one run of tokens only, once as it is and once moved by 8 keys. Whole tiles only.
FLASHREL_HD constexpr bool can_pair_rows(int tile_rows, int group) { return 8 % group == 0 && tile_rows % (16 * group) == 0; }

// The row, counted from the tile's first one, at a place of the tile.
FLASHREL_HD constexpr int paired_row(int place, int group) {
  const int pair = place / 16, lower = place / 8 % 2;
  return (pair / group * 2 * group + pair % group + lower * group) * 8 + place % 8;
}

}  // namespace flashrel
