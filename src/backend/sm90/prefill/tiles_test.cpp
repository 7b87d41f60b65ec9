#include "backend/sm90/prefill/tiles.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "index/ranges.hpp"

namespace flashrel::sm90::prefill {
namespace {

TEST(Sm90Tiles, WarpsOwnEveryRowOnceAndTokensEightApart) {
  for (int group_log2 : {0, 1, 2, 3, 4}) {
    const int group = 1 << group_log2;
    std::set<int> rows;
    for (int warp = 0; warp < kConsumerWarps; ++warp)
      for (int row = 0; row < kWarpRows; ++row) {
        const int packed = warp_row(warp, row, group_log2);
        EXPECT_TRUE(rows.insert(packed).second);
        EXPECT_EQ(packed / group, warp + 8 * (row / group));
        EXPECT_EQ(packed % group, row % group);
      }
    EXPECT_EQ(*rows.begin(), 0);
    EXPECT_EQ(*rows.rbegin(), kTileRows - 1);
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(kTileRows));
  }
}

TEST(Sm90Tiles, ALaneKnowsItsColumns) {
  for (int begin = -130; begin <= 140; ++begin)
    for (int end = begin; end <= 140; ++end) {
      const std::uint32_t mask = lane_columns({begin, end});
      for (int i = 0; i < 32; ++i) {
        const int column = i / 2 * 8 + i % 2;
        ASSERT_EQ((mask >> i & 1) != 0, column >= begin && column < end) << begin << " " << end << " " << column;
      }
    }
  EXPECT_EQ(lane_columns({-kFar, kFar}), ~0u);
}

// Where TMA puts element (x, slot_low, line, slot_high) of a box: dense in that order, then the 128-byte swizzle, which XORs
// address bits 4-6 with bits 7-9.
int tma_offset_bytes(int head_dim, int x, int slot_low, int line, int slot_high) {
  const int linear = (((slot_high * lines_per_row(head_dim) + line) * kKeysPerGroup + slot_low) * kLineElems + x) * 2;
  return linear ^ (linear >> 7 & 7) << 4;
}

TEST(Sm90Tiles, BoxesOfAnyPageSizeLandWhereTheWholeTileWouldPutThem) {
  for (int head_dim : {64, 128})
    for (int keys : {8, 16, 24, 32, 64, 96, 128})
      for (int box = 0; box < kMaxTileKeys / keys; ++box)
        for (int key = 0; key < keys; ++key)
          for (int line = 0; line < lines_per_row(head_dim); ++line)
            for (int x = 0; x < kLineElems; x += kChunkElems) {
              const int base = box * kv_tile_bytes(head_dim, keys);
              ASSERT_EQ(base % 1024, 0) << "the swizzle counts from a multiple of 1,024 bytes";
              EXPECT_EQ(base + tma_offset_bytes(head_dim, x, key % kKeysPerGroup, line, key / kKeysPerGroup),
                        kv_offset_bytes(head_dim, box * keys + key, line, x / kChunkElems));
            }
}

TEST(Sm90Tiles, EveryChunkOfATileHasItsOwnPlace) {
  for (int head_dim : {64, 128}) {
    std::set<int> kv, q;
    for (int row = 0; row < 128; ++row)
      for (int line = 0; line < lines_per_row(head_dim); ++line)
        for (int chunk = 0; chunk < 8; ++chunk) {
          kv.insert(kv_offset_bytes(head_dim, row, line, chunk));
          q.insert(q_offset_bytes(row, line, chunk));
        }
    EXPECT_EQ(kv_tile_bytes(head_dim, 128), q_tile_bytes(head_dim));
    for (const auto& offsets : {kv, q}) {
      EXPECT_EQ(offsets.size(), static_cast<std::size_t>(head_dim) * 16);
      EXPECT_EQ(*offsets.rbegin() + kChunkBytes, q_tile_bytes(head_dim));
    }
  }
}

TEST(Sm90Tiles, BoxesCoverATileKeyByKeyInsideTheirPages) {
  for (int tile_keys : {96, 128})
    for (int page = 8; page <= 600; page += 8)
      for (const int first_key : {0, 16, 7 * 16}) {
        const int keys = box_keys(page);
        const FastDiv divide(static_cast<std::uint32_t>(page));
        ASSERT_LE(tile_keys / keys, 16);
        ASSERT_EQ(tile_keys % keys, 0);
        for (int tile : {0, 1, 2, 3, 7, 1000, 8388606}) {
          for (int key = tile * tile_keys; key < (tile + 1) * tile_keys; ++key) {
            const int in_box = key % tile_keys % keys;
            const Box box = box_at(key - in_box, keys, divide, {0, kMaxLength}, first_key);
            ASSERT_EQ(box.entry, (first_key + key) / page);
            ASSERT_EQ(box.slot + in_box, (first_key + key) % page);
            ASSERT_LE(box.slot + keys, page);
            ASSERT_EQ(box.slot % kKeysPerGroup, 0);
          }
        }
      }
}

TEST(Sm90Tiles, NeededBoxesAndSeenRows) {
  for (int tile_keys : {96, 128})
    for (int page : {8, 16, 24, 64, 128, 256})
      for (int begin = 0; begin <= 300; begin += 7)
        for (int end = begin; end <= 420; end += 11)
          for (int tile = 0; tile < 4; ++tile) {
            const Range seen{begin, end};
            const int keys = box_keys(page);
            for (int first = tile * tile_keys; first < (tile + 1) * tile_keys; first += keys) {
              bool needed = false;
              for (int key = first; key < first + keys; ++key) needed = needed || seen.contains(key);
              ASSERT_EQ(box_at(first, keys, FastDiv(static_cast<std::uint32_t>(page)), seen, 0).needed, needed);
            }
            for (int row = 0; row < tile_keys; ++row)
              ASSERT_EQ(keys_in_tile(seen, tile, tile_keys).contains(row), seen.contains(tile * tile_keys + row));
          }
}

}  // namespace
}  // namespace flashrel::sm90::prefill
