#include "backend/sm90/decode/tiles.hpp"

#include <gtest/gtest.h>

#include <set>

#include "index/ranges.hpp"

namespace flashrel::sm90::decode {
namespace {

TEST(Sm90DecodeTiles, EveryCallFindsTheSmallestInstance) {
  for (int rows = 0; rows <= kMaxRows; ++rows) {
    const int instance = instance_rows(rows);
    EXPECT_GE(instance, rows);
    EXPECT_EQ(instance % 8, 0);
    for (const int other : kInstanceRows) EXPECT_TRUE(other >= instance || other < rows);
  }
  EXPECT_EQ(instance_rows(kMaxRows + 1), 0);
}

// A box of 8 keys is one copy of two lines of eight rows: its 2 KB are one run of the tile.
TEST(Sm90DecodeTiles, KeysLieInRunsOfEight) {
  std::set<int> seen;
  for (int key = 0; key < kTileKeys; ++key)
    for (int line = 0; line < kLinesPerRow; ++line)
      for (int chunk = 0; chunk < 8; ++chunk) {
        const int offset = kv_offset_bytes(kHeadDim, key, line, chunk);
        EXPECT_EQ(offset / kKeyGroupBytes, key / kKeysPerGroup);
        EXPECT_TRUE(seen.insert(offset).second);
      }
  EXPECT_EQ(*seen.rbegin() + kChunkBytes, kKvTileBytes);
}

// The run of rel_proj that a tile reads holds the entry of every pair: distance + rel_zero.
TEST(Sm90DecodeTiles, BiasEntriesAreDistances) {
  for (const int rows : kInstanceRows)
    for (const int first_key : {0, 64, 640})
      for (const int first_pos : {0, 63, 700}) {
        const int origin = first_pos - (first_key + kTileKeys - 1);
        for (int token = 0; token < max_tile_tokens(rows); ++token)
          for (int key = 0; key < kTileKeys; ++key) {
            const int entry = origin + bias_entry(token, key);
            EXPECT_EQ(entry, first_pos + token - (first_key + key));
            EXPECT_EQ(bias_begin(origin) % 8, 0);
            EXPECT_TRUE(entry >= bias_begin(origin) && entry < bias_begin(origin) + bias_entries(rows));
          }
      }
}

TEST(Sm90DecodeTiles, BoxesCoverATileAndStayInsideAPage) {
  for (int page_size = 8; page_size <= 512; page_size += 8)
    for (const int most_keys : {kFewKeys, kFewKeys + 1}) {
      const int keys = box_keys(page_size, most_keys);
      EXPECT_EQ(keys % kKeysPerGroup, 0);
      EXPECT_EQ(kTileKeys % keys, 0);
      for (int first = 0; first < 4 * page_size; first += keys) EXPECT_LE(first % page_size + keys, page_size);
    }
}

TEST(Sm90DecodeTiles, SeenRowsOfATile) {
  for (int begin = 0; begin < 200; begin += 7)
    for (int end = begin; end < 200; end += 5)
      for (int tile = 0; tile < 4; ++tile)
        for (int row = 0; row < kTileKeys; ++row)
          EXPECT_EQ(keys_in_tile({begin, end}, tile, kTileKeys).contains(row),
                    (Range{begin, end}.contains(tile * kTileKeys + row)));
}

}  // namespace
}  // namespace flashrel::sm90::decode
