#include "backend/sm90/prefill/job.hpp"

#include <gtest/gtest.h>

namespace flashrel::sm90::prefill {
namespace {

// Every part of every unit: the job's ranges say of each tile what classify says.
void check_jobs(int max_parts, Lengths lengths, const JobRules& rules) {
  const int group = 1 << rules.group_log2, tile_keys = rules.tile_keys;
  const Range visible = rules.visible, band = rules.band;
  ScheduleShape shape;
  shape.n_seqs = 1;
  shape.group = group;
  shape.tile_rows = kTileRows;
  shape.tile_keys = tile_keys;
  shape.visible = visible;
  shape.max_parts = max_parts;
  const auto emit = [&](const WorkItem& item) {
    Job job;
    make_job(item, lengths, 1000, rules, job);
    const Range tokens = row_tokens({item.row_tile * kTileRows, item.row_tile * kTileRows + item.n_rows}, group);
    EXPECT_EQ(job.first_token, 1000 + tokens.begin);
    EXPECT_EQ(job.first_pos, q_pos(tokens.begin, lengths) - job.first_key);
    EXPECT_EQ(job.kv_len, lengths.kv_len - job.first_key);
    EXPECT_EQ(job.first_key % kBoxKeys, 0);
    if (item.n_parts > 1) {
      EXPECT_EQ(job.first_key, 0);
      EXPECT_EQ(job.tiles, (Range{item.tile_begin, item.tile_end}));
    }
    const Range keys_of_job{job.first_key + job.tiles.begin * tile_keys,
                            job.first_key + job.tiles.end * tile_keys - (job.first_is_half != 0 ? tile_keys / 2 : 0)};
    const Range visible_to_job = visible_keys(tokens, lengths, visible);
    if (item.n_parts == 1 && !job.tiles.empty()) {
      EXPECT_TRUE(keys_of_job.begin <= visible_to_job.begin && visible_to_job.end <= keys_of_job.end) << "a key is missed";
      const int granularity = rules.halves ? tile_keys / 2 : tile_keys;
      EXPECT_LT(keys_of_job.size() - visible_to_job.size(), kBoxKeys + granularity) << "tiles in vain";
    }
    if (!rules.halves || item.n_parts > 1) EXPECT_EQ(job.first_is_half, 0);
    for (int tile = job.tiles.begin; tile < job.tiles.end; ++tile) {
      const Range keys{job.first_key + tile * tile_keys, job.first_key + (tile + 1) * tile_keys};
      const TileClass expected = classify(tokens, keys, lengths, visible, band);
      const bool first_visited = tile == job.tiles.end - 1;
      ASSERT_EQ(job.loops.masked(tile), expected.masked || first_visited)
          << "q_len " << lengths.q_len << " kv_len " << lengths.kv_len << " group " << group << " visible " << visible.begin
          << " " << visible.end << " row tile " << item.row_tile << " tile " << tile;
      // Tiles that need the bias are never taken for plain.
      ASSERT_TRUE(!expected.biased || job.loops.biased(tile));
      // The consumers ask for the bias of the first tile and of all masked tiles, and the follower brings what `biased` says.
      ASSERT_TRUE(!job.loops.masked(tile) || job.loops.biased(tile));
      // And with a band that starts at the diagonal, as in the models, no tile is taken for biased without need.
      const bool from_diagonal = !band.empty() && band.begin <= 0 && visible.begin == 0;
      ASSERT_TRUE(!from_diagonal || job.loops.masked(tile) || !job.loops.biased(tile) || expected.biased);
    }
    for (int key = 0; key < lengths.kv_len; ++key) {
      bool seen = false;
      for (int i = 0; i < lengths.q_len && !seen; ++i) seen = visible.contains(q_pos(i, lengths) - key);
      ASSERT_TRUE(!seen || key < job.first_key || job.seen.contains(key - job.first_key));
    }
    ASSERT_LE(job.seen.end, job.kv_len);
    ASSERT_GE(job.seen.begin, 0);
  };
  build_schedule(shape, [&](int) { return lengths; }, emit);
}

TEST(Sm90Job, RangesAgreeWithClassify) {
  const Range bands[] = {{0, 0}, {0, 1}, {0, 64}, {0, 128}, {0, 512}, {5, 300}, {-64, 200}};
  for (int tile_keys : {96, 128})
    for (int group_log2 : {0, 2, 3, 4})
      for (int q_len : {1, 7, 16, 17, 65, 130})
        for (int kv_len : {1, 63, 128, 129, 300, 700})
          for (const Range visible :
               {Range{0, kFar}, Range{0, 1}, Range{0, 128}, Range{0, 200}, Range{-kFar, kFar}, Range{-50, 100}})
            for (const Range band : bands)
              for (const bool halves : {false, true})
                for (const int max_parts : {1, 3})
                  check_jobs(max_parts, {q_len, kv_len}, {group_log2, visible, band, tile_keys, halves && tile_keys == 128});
}

// A CTA that finds its item itself makes the same job of it as one that reads it from the table.
TEST(Sm90Job, WholeItemsAreThoseOfTheSchedule) {
  for (const int group_log2 : {0, 1, 2, 3, 4})
    for (const int q_len : {0, 1, 7, 16, 17, 65, 130, 300})
      for (const int kv_len : {0, 1, 63, 129, 300, 700})
        for (const Range visible : {Range{0, kFar}, Range{0, 1}, Range{0, 200}, Range{-kFar, kFar}, Range{-50, 100}}) {
          const Lengths lengths{q_len, kv_len};
          const JobRules rules{group_log2, visible, {0, 256}, kMaxTileKeys, false};
          ScheduleShape shape;
          shape.n_seqs = 1, shape.n_kv_heads = 2, shape.group = 1 << group_log2;
          shape.tile_rows = kTileRows, shape.tile_keys = kMaxTileKeys, shape.visible = visible;
          const int n_row_tiles = token_tiles(q_len, group_log2);
          int index = 0;
          build_schedule(
              shape, [&](int) { return lengths; },
              [&](const WorkItem& item) {
                const WorkItem own = whole_item(0, index % 2, n_row_tiles - 1 - index / 2, lengths, group_log2);
                ++index;
                ASSERT_EQ(own.row_tile, item.row_tile);
                ASSERT_EQ(own.kv_head, item.kv_head);
                Job expected, job;
                make_job(item, lengths, 1000, rules, expected);
                make_job(own, lengths, 1000, rules, job);
                ASSERT_EQ(job.tiles.empty(), expected.tiles.empty());
                EXPECT_EQ(job.n_rows, expected.n_rows);
                EXPECT_EQ(job.first_token, expected.first_token);
                if (expected.tiles.empty()) return;
                EXPECT_EQ(job, expected) << "q_len " << q_len << " kv_len " << kv_len << " row tile " << item.row_tile;
              });
          EXPECT_EQ(index, 2 * n_row_tiles);
        }
}

// The local layers of the models: 512 keys and 32 tokens are four tiles and a half wherever they stand.
TEST(Sm90Job, AWindowOf512MeetsFourTilesAndAHalf) {
  ScheduleShape shape;
  shape.n_seqs = 1, shape.group = 4, shape.tile_rows = kTileRows, shape.tile_keys = kMaxTileKeys, shape.visible = {0, 512};
  for (const int context : {0, 1, 17, 96, 1000})
    build_schedule(
        shape, [&](int) { return Lengths{4096, 4096 + context}; },
        [&](const WorkItem& item) {
          if (item.row_tile < 16) return;
          Job job;
          make_job(item, {4096, 4096 + context}, 0, {2, {0, 512}, {0, 512}, kMaxTileKeys, true}, job);
          ASSERT_EQ(job.tiles, (Range{0, 5}));
          ASSERT_EQ(job.first_is_half, 1);
          ASSERT_EQ(job.loops.masked_to, 4);
          ASSERT_EQ(job.loops.plain_to, 1);
        });
}

TEST(Sm90Job, LongSequences) {
  WorkItem item;
  item.row_tile = 3;
  item.n_rows = kTileRows;
  item.tile_begin = 0;
  item.tile_end = kMaxLength / kMaxTileKeys;
  Job job;
  make_job(item, {64, kMaxLength - 1}, 0, {3, {0, kFar}, {0, 1024}, kMaxTileKeys, false}, job);
  EXPECT_EQ(job.first_pos, kMaxLength - 1 - 64 + 48);
  EXPECT_EQ(job.loops.masked_to, (job.first_pos + 1) / kMaxTileKeys);
  EXPECT_EQ(job.loops.biased_to, (job.first_pos - 1023) / kMaxTileKeys);
  EXPECT_EQ(job.loops.plain_to, 0);
}

}  // namespace
}  // namespace flashrel::sm90::prefill
