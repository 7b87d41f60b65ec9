#include "index/rows.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "index/ranges.hpp"

namespace flashrel {
namespace {

TEST(Rows, PairsNeedAGroupThatDividesEightAndWholeTiles) {
  for (const int group : {1, 2, 4, 8}) EXPECT_TRUE(can_pair_rows(128, group)) << group;
  for (const int group : {3, 5, 6, 7, 9, 16, 64}) EXPECT_FALSE(can_pair_rows(128, group)) << group;
  EXPECT_TRUE(can_pair_rows(64, 4));
  EXPECT_FALSE(can_pair_rows(64, 8));
}

TEST(Rows, PairedRowsAreAPermutationWhoseHalvesStandEightTokensApart) {
  for (const int tile_rows : {64, 128})
    for (const int group : {1, 2, 4, 8}) {
      if (!can_pair_rows(tile_rows, group)) continue;
      std::vector<int> seen(static_cast<std::size_t>(tile_rows));
      for (int place = 0; place < tile_rows; ++place) {
        const int row = paired_row(place, group);
        ASSERT_TRUE(0 <= row && row < tile_rows);
        ++seen[static_cast<std::size_t>(row)];
        if (place % 16 >= 8) continue;
        const int partner = paired_row(place + 8, group);
        EXPECT_EQ(row_token(partner, group), row_token(row, group) + 8) << "place " << place << ", group " << group;
        EXPECT_EQ(partner % group, row % group);
        // The upper half of a block is a run of rows that starts with a token.
        EXPECT_EQ(row, paired_row(place / 8 * 8, group) + place % 8);
        EXPECT_EQ(paired_row(place / 8 * 8, group) % group, 0);
      }
      for (const int n : seen) EXPECT_EQ(n, 1);
    }
}

TEST(Rows, VisibleKeysOfAPositionAreThoseOfItsToken) {
  for (const Range visible : {Range{0, kFar}, Range{0, 5}, Range{-3, 4}, Range{-kFar, kFar}, Range{2, 3}})
    for (const int q_len : {1, 4, 9})
      for (const int kv_len : {0, 1, 3, 9, 20})
        for (int token = 0; token < q_len; ++token) {
          const Lengths lengths{q_len, kv_len};
          const Range found = visible_keys_at(q_pos(token, lengths), lengths, visible);
          const Range expected = visible_keys({token, token + 1}, lengths, visible);
          EXPECT_EQ(found.size(), expected.size());
          if (!expected.empty()) EXPECT_EQ(found, expected);
        }
}

}  // namespace
}  // namespace flashrel
