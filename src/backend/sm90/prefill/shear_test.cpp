#include "backend/sm90/prefill/shear.hpp"

#include <gtest/gtest.h>

#include "index/distance.hpp"

namespace flashrel::sm90::prefill {
namespace {

// proj^T as the kernel stores it: entry i of L, or zero; any other row would be memory that is not there.
long long stored_entry(int i, int extent) {
  EXPECT_GE(i, -kProjPad);
  EXPECT_LT(i, extent + kProjPad);
  return i >= 0 && i < extent ? i : -1;
}

// Every score of a tile must get the entry of its own distance, or zero outside the band, wherever tile and token stand.
void check_tile(int tile_keys, int group, int extent, long long first_pos, int tile, long long rel_zero) {
  const int n_blocks = tile_keys / kBlockKeys;
  const int origin = clamped_origin(first_pos + rel_zero - static_cast<long long>(tile) * tile_keys, extent);
  for (int warp = 0; warp < kConsumerWarps; ++warp)
    for (int row = 0; row < kWarpRows; ++row)
      for (int block = 0; block < n_blocks; ++block)
        for (int column = 0; column < kBlockKeys; ++column) {
          const int fragment = fragment_of(block, row, group);
          ASSERT_GE(fragment, first_fragment(group));
          ASSERT_LT(fragment, n_blocks);
          const int token = warp_row(warp, row, group == 16 ? 4 : group == 8 ? 3 : 2) / group;
          const long long key = static_cast<long long>(tile) * tile_keys + block * kBlockKeys + column;
          const long long index = first_pos + token - key + rel_zero;
          const long long expected = index >= 0 && index < extent ? index : -1;
          ASSERT_EQ(stored_entry(proj_entry(origin, warp, fragment, column), extent), expected)
              << "group " << group << " extent " << extent << " first_pos " << first_pos << " tile " << tile << " rel_zero "
              << rel_zero << " warp " << warp << " row " << row << " block " << block << " column " << column;
        }
}

TEST(Sm90Shear, EveryScoreGetsTheEntryOfItsDistance) {
  for (int tile_keys : {96, 128})
    for (int group : {4, 8, 16})
      for (int extent : {1, 2, 64, 127, 128, 129, 512, 1024})
        for (int tile = 0; tile < 4; ++tile)
          for (int first_pos : {-200, -1, 0, 1, 5, 126, 127, 128, 129, 255, 300, 511, 640, 1151, 1152, 1153, 1400, 5000})
            check_tile(tile_keys, group, extent, first_pos, tile, 0);
}

TEST(Sm90Shear, FarFromTheBandAndWithAnOrigin) {
  for (int tile_keys : {96, 128})
    for (int group : {4, 8, 16})
      for (long long rel_zero : {-1000000000ll, -700ll, -3ll, 64ll, 511ll, 1000000000ll})
        for (long long first_pos : {-1000000000ll, 0ll, 700ll, 1000000000ll}) {
          const long long near = (first_pos + rel_zero) / tile_keys;
          for (long long tile : {0ll, near - 1, near, near + 1, 8000000ll})
            if (tile >= 0 && tile < kMaxLength / tile_keys)
              check_tile(tile_keys, group, 1024, first_pos, static_cast<int>(tile), rel_zero);
        }
}

// A call that builds only the entries its lengths and window can reach finds every visible pair's, in tiles as its jobs cut
// them.
void check_entries(Range visible, Lengths lengths, Lengths bounds, long long rel_zero, int extent, int group) {
  const Range entries = proj_entries(possible_distances(visible, bounds.q_len, bounds.kv_len), rel_zero, extent);
  ASSERT_TRUE(-kProjPad <= entries.begin && entries.begin <= entries.end && entries.end <= extent + kProjPad);
  const int n_tokens = kTileRows / group;
  for (int first_token = 0; first_token < lengths.q_len; first_token += n_tokens)
    for (int first_key = 0; first_key < lengths.kv_len; first_key += kBoxKeys) {
      const int first_pos = q_pos(first_token, lengths);
      const int origin = clamped_origin(first_pos + rel_zero - first_key, extent);
      for (int warp = 0; warp < kConsumerWarps; ++warp)
        for (int row = 0; row < kWarpRows; row += group < kWarpRows ? group : 1)
          for (int key = 0; key < kMaxTileKeys && first_key + key < lengths.kv_len; ++key) {
            const int token = first_token + warp + kConsumerWarps * (row / group);
            if (token >= lengths.q_len || !visible.contains(q_pos(token, lengths) - first_key - key)) continue;
            const int fragment = fragment_of(key / kBlockKeys, row, group);
            ASSERT_TRUE(entries.contains(proj_entry(origin, warp, fragment, key % kBlockKeys)))
                << "visible " << visible.begin << " " << visible.end << " lengths " << lengths.q_len << " " << lengths.kv_len
                << " rel_zero " << rel_zero << " extent " << extent << " token " << token << " key " << first_key + key;
          }
    }
}

TEST(Sm90Shear, EveryVisiblePairFindsItsEntryBuilt) {
  for (const Range visible : {Range{0, kFar}, Range{0, 1}, Range{0, 200}, Range{-kFar, kFar}, Range{-50, 100}})
    for (const Lengths bounds : {Lengths{1, 1}, Lengths{70, 70}, Lengths{40, 300}, Lengths{130, 90}})
      for (const int kv_len : {bounds.kv_len, bounds.kv_len / 2 + 1})
        for (const int extent : {1, 64, 250, 1024})
          for (const long long rel_zero : {0ll, 30ll, -3ll, -700ll, 300ll, 1000000000ll, -1000000000ll})
            for (const int group : {4, 8, 16}) check_entries(visible, {bounds.q_len, kv_len}, bounds, rel_zero, extent, group);
}

TEST(Sm90Shear, ACallBuildsWhatItCanReach) {
  // 512 tokens of an extent of 1,024; a window; a context past the table; signed distances.
  EXPECT_EQ(proj_entries(possible_distances({0, kFar}, 512, 512), 0, 1024), (Range{0, 512}));
  EXPECT_EQ(proj_entries(possible_distances({0, 512}, 8192, 8192), 0, 512), (Range{0, 512}));
  EXPECT_EQ(proj_entries(possible_distances({0, kFar}, 8192, 8192), 0, 1024), (Range{0, 1024 + kProjPad}));
  EXPECT_EQ(proj_entries(possible_distances({-kFar, kFar}, 100, 300), 128, 1024), (Range{29, 428}));
  EXPECT_EQ(proj_entries(possible_distances({-kFar, kFar}, 200, 300), 128, 1024), (Range{-71, 428}));
}

// The kernel's group 4 code takes fragments f and f + 1 for blocks f + 1 (rows 0-7) and f + 3 (rows 8-15).
TEST(Sm90Shear, QuartersOfGroupFour) {
  for (int f = first_fragment(4); f < kMaxTileKeys / kBlockKeys; ++f) {
    EXPECT_EQ(fragment_of(f + 1, 0, 4), f + 1);
    EXPECT_EQ(fragment_of(f + 1, 4, 4), f);
    EXPECT_EQ(fragment_of(f + 3, 8, 4), f + 1);
    EXPECT_EQ(fragment_of(f + 3, 12, 4), f);
  }
}

}  // namespace
}  // namespace flashrel::sm90::prefill
