#include "backend/sm90/prefill/job.hpp"

#include <gtest/gtest.h>

namespace flashrel::sm90::prefill {
namespace {

// Every part of every unit: the job's ranges say of each tile what classify says.
void check_jobs(int tile_keys, Lengths lengths, int group_log2, Range visible, Range band) {
  const int group = 1 << group_log2;
  ScheduleShape shape;
  shape.n_seqs = 1;
  shape.group = group;
  shape.tile_rows = kTileRows;
  shape.tile_keys = tile_keys;
  shape.visible = visible;
  shape.max_parts = 3;
  const auto emit = [&](const WorkItem& item) {
    Job job;
    make_job(item, lengths, 1000, group_log2, visible, band, tile_keys, job);
    const Range tokens = row_tokens({item.row_tile * kTileRows, item.row_tile * kTileRows + item.n_rows}, group);
    EXPECT_EQ(job.first_token, 1000 + tokens.begin);
    EXPECT_EQ(job.first_pos, q_pos(tokens.begin, lengths));
    EXPECT_EQ(job.tiles, (Range{item.tile_begin, item.tile_end}));
    for (int tile = job.tiles.begin; tile < job.tiles.end; ++tile) {
      const Range keys{tile * tile_keys, (tile + 1) * tile_keys};
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
      ASSERT_TRUE(!seen || job.seen.contains(key));
    }
    ASSERT_LE(job.seen.end, lengths.kv_len);
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
            for (const Range band : bands) check_jobs(tile_keys, {q_len, kv_len}, group_log2, visible, band);
}

TEST(Sm90Job, LongSequences) {
  WorkItem item;
  item.row_tile = 3;
  item.n_rows = kTileRows;
  item.tile_begin = 0;
  item.tile_end = kMaxLength / kMaxTileKeys;
  Job job;
  make_job(item, {64, kMaxLength - 1}, 0, 3, {0, kFar}, {0, 1024}, kMaxTileKeys, job);
  EXPECT_EQ(job.first_pos, kMaxLength - 1 - 64 + 48);
  EXPECT_EQ(job.loops.masked_to, (job.first_pos + 1) / kMaxTileKeys);
  EXPECT_EQ(job.loops.biased_to, (job.first_pos - 1023) / kMaxTileKeys);
  EXPECT_EQ(job.loops.plain_to, 0);
}

}  // namespace
}  // namespace flashrel::sm90::prefill
