// Equal shares by brute force: every key tile once, cuts where they are said to be, slots and bounds.
#include "index/shares.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "index/schedule.hpp"

namespace flashrel {
namespace {

struct Table {
  std::vector<WorkItem> items;
  std::vector<int> item_begin;
  int n_slots = 0;
};

Table table_of(const ScheduleShape& shape, const std::vector<Lengths>& batch) {
  Table table;
  table.n_slots = build_shares(
      shape, [&](int seq) { return batch[static_cast<std::size_t>(seq)]; },
      [&](const WorkItem& item) { table.items.push_back(item); }, &table.item_begin);
  return table;
}

// Items in table order are the tiles of every unit, once, in order; parts and slots are numbered without gaps.
void expect_whole_units(const ScheduleShape& shape, const std::vector<Lengths>& batch, const Table& table) {
  std::size_t at = 0;
  int slot = 0;
  for (int seq = 0; seq < shape.n_seqs; ++seq) {
    const Lengths lengths = batch[static_cast<std::size_t>(seq)];
    if (lengths.q_len == 0) continue;
    const Range tiles = key_tiles(visible_keys({0, lengths.q_len}, lengths, shape.visible), shape.tile_keys);
    for (int kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      int tile = tiles.begin, part = 0, n_parts = 0;
      do {
        ASSERT_LT(at, table.items.size());
        const WorkItem& item = table.items[at++];
        ASSERT_TRUE(item.seq == seq && item.kv_head == kv_head && item.row_tile == 0);
        ASSERT_EQ(item.n_rows, lengths.q_len * shape.group);
        ASSERT_EQ(item.tile_begin, tile);
        ASSERT_TRUE(item.tile_end > tile || tiles.empty());
        if (part == 0) n_parts = item.n_parts;
        ASSERT_TRUE(item.part == part && item.n_parts == n_parts);
        ASSERT_EQ(item.slot, n_parts > 1 ? slot++ : -1);
        tile = item.tile_end;
      } while (++part < n_parts);
      ASSERT_EQ(tile, tiles.end);
    }
  }
  EXPECT_EQ(at, table.items.size());
  EXPECT_EQ(slot, table.n_slots);
}

// A share is off from the even length by no more than what cuts may move at its two ends.
void expect_even_shares(const ScheduleShape& shape, const Table& table) {
  std::int64_t total = 0;
  for (const WorkItem& item : table.items) total += item.tile_end - item.tile_begin;
  const int n_used = used_shares(shape, total);
  const std::int64_t slack = smallest_cut_unit(shape, total, n_used) + 1;
  ASSERT_EQ(table.item_begin.size(), static_cast<std::size_t>(shape.n_shares) + 1);
  EXPECT_EQ(table.item_begin.front(), 0);
  EXPECT_EQ(table.item_begin.back(), static_cast<int>(table.items.size()));
  EXPECT_TRUE(std::is_sorted(table.item_begin.begin(), table.item_begin.end()));
  for (int share = 0; share < shape.n_shares; ++share) {
    std::int64_t tiles = 0;
    for (int i = table.item_begin[static_cast<std::size_t>(share)]; i < table.item_begin[static_cast<std::size_t>(share) + 1];
         ++i) {
      const WorkItem& item = table.items[static_cast<std::size_t>(i)];
      tiles += item.tile_end - item.tile_begin;
      // A part that goes on belongs to the next share, so a share holds parts at its ends alone.
      if (item.part > 0) {
        ASSERT_EQ(i, table.item_begin[static_cast<std::size_t>(share)]);
      }
    }
    const std::int64_t even = share < n_used ? total / n_used : 0;
    ASSERT_LE(std::abs(tiles - even), share < n_used ? slack : 0) << "share " << share;
  }
}

void expect_right(const ScheduleShape& shape, const std::vector<Lengths>& batch) {
  const Table table = table_of(shape, batch);
  ASSERT_NO_FATAL_FAILURE(expect_whole_units(shape, batch, table));
  ASSERT_NO_FATAL_FAILURE(expect_even_shares(shape, table));
  std::int64_t n_tokens = 0, max_seqlen_k = 0;
  for (const Lengths lengths : batch) {
    n_tokens += lengths.q_len;
    max_seqlen_k = std::max<std::int64_t>(max_seqlen_k, lengths.kv_len);
  }
  const ScheduleBounds bounds = share_bounds(shape, n_tokens, max_seqlen_k);
  EXPECT_LE(static_cast<std::int64_t>(table.items.size()), bounds.n_items);
  EXPECT_LE(table.n_slots, bounds.n_slots);
}

ScheduleShape shape_of(int n_seqs, int n_kv_heads, int n_shares) {
  ScheduleShape shape;
  shape.n_seqs = n_seqs;
  shape.n_kv_heads = n_kv_heads;
  shape.group = 4;
  shape.tile_rows = 72;
  shape.n_shares = n_shares;
  shape.visible = visible_distances(true, -1, -1);
  return shape;
}

TEST(Shares, RandomBatches) {
  std::mt19937 random(1);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  for (int trial = 0; trial < 3000; ++trial) {
    ScheduleShape shape = shape_of(1 + upto(trial % 50 == 0 ? 400 : 8), 1 + upto(3), 1 + upto(trial % 3 == 0 ? 140 : 9));
    if (upto(2) == 0) shape.visible = visible_distances(true, upto(1) ? upto(600) : upto(3), -1);
    std::vector<Lengths> batch;
    const int longest = upto(1) ? 9000 : 400;
    for (int seq = 0; seq < shape.n_seqs; ++seq)
      batch.push_back({upto(3) == 0 ? 0 : 1 + upto(8), upto(4) == 0 ? 0 : upto(longest)});
    ASSERT_NO_FATAL_FAILURE(expect_right(shape, batch)) << "trial " << trial;
  }
}

TEST(Shares, ShortUnitsStayWholeAndLongOnesDoNot) {
  const Table many = table_of(shape_of(512, 1, 132), std::vector<Lengths>(512, {1, 300}));
  EXPECT_EQ(many.n_slots, 0);
  EXPECT_EQ(many.items.size(), 512u);
  const Table one = table_of(shape_of(1, 1, 132), {{1, 1 << 20}});
  EXPECT_EQ(one.items.size(), 132u);
  EXPECT_EQ(one.n_slots, 132);
}

TEST(Shares, NothingToCut) {
  expect_right(shape_of(3, 2, 7), {{0, 100}, {0, 0}, {0, 5}});
  expect_right(shape_of(3, 2, 7), {{1, 0}, {0, 0}, {2, 0}});
  expect_right(shape_of(1, 1, 132), {{1, 1}});
}

TEST(Shares, TileNumbersMayPass31Bits) {
  const ScheduleShape shape = shape_of(64, 8, 132);
  const Table table = table_of(shape, std::vector<Lengths>(64, {1, kMaxLength - 1}));
  expect_whole_units(shape, std::vector<Lengths>(64, {1, kMaxLength - 1}), table);
  expect_even_shares(shape, table);
}

}  // namespace
}  // namespace flashrel
