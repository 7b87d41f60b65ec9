// The schedule that the device makes is the table that the host defines, item by item.
#include "gpu/schedule.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "check/memory.hpp"
#include "gpu/shares.hpp"
#include "index/schedule.hpp"
#include "plan/make_plan.hpp"

namespace flashrel {
namespace {

using check::Block;

struct Batch {
  std::vector<std::int32_t> q_lens, kv_lens;
};

// Runs the device form on `batch` and compares items, counts and merge list with build_schedule.
void expect_same_table(const ScheduleShape& shape, const Batch& batch) {
  Problem problem;
  problem.n_seqs = shape.n_seqs;
  problem.n_q_heads = shape.n_kv_heads * shape.group;
  problem.n_kv_heads = shape.n_kv_heads;
  std::vector<std::int32_t> prefix{0};
  for (const std::int32_t q_len : batch.q_lens) {
    prefix.push_back(prefix.back() + q_len);
    problem.max_seqlen_q = std::max<std::int64_t>(problem.max_seqlen_q, q_len);
  }
  for (const std::int32_t kv_len : batch.kv_lens) problem.max_seqlen_k = std::max<std::int64_t>(problem.max_seqlen_k, kv_len);
  problem.n_tokens = prefix.back();

  Plan plan;
  plan.schedule = shape;
  plan.bounds = schedule_bounds(shape, problem.n_tokens, problem.max_seqlen_q, problem.max_seqlen_k);
  book_work_list(plan);
  const bool shared = shape.n_shares > 0;
  if (shared) gpu::book_shares(plan);

  std::vector<WorkItem> expected;
  std::vector<std::int32_t> expected_merges;
  const int n_slots = build_schedule(
      shape, [&](int seq) { return Lengths{batch.q_lens[seq], batch.kv_lens[seq]}; },
      [&](const WorkItem& item) {
        if (item.n_parts > 1 && item.part == 0) expected_merges.push_back(static_cast<std::int32_t>(expected.size()));
        expected.push_back(item);
      });

  Block schedule, q, kv;
  const std::size_t prefix_bytes = prefix.size() * 4, kv_bytes = batch.kv_lens.size() * 4;
  ASSERT_TRUE(Block::allocate(MemoryKind::kCuda, plan.schedule_memory.total_bytes(), schedule).ok());
  ASSERT_TRUE(Block::allocate(MemoryKind::kCuda, prefix_bytes, q).ok());
  ASSERT_TRUE(Block::allocate(MemoryKind::kCuda, kv_bytes, kv).ok());
  ASSERT_TRUE(check::fill_bytes(MemoryKind::kCuda, schedule.data(), 0xff, schedule.bytes()).ok());
  ASSERT_TRUE(check::copy_in(MemoryKind::kCuda, q.data(), prefix.data(), prefix_bytes).ok());
  ASSERT_TRUE(check::copy_in(MemoryKind::kCuda, kv.data(), batch.kv_lens.data(), kv_bytes).ok());
  Tensors tensors;
  tensors.cu_seqlens_q = reinterpret_cast<const std::int32_t*>(q.data());
  tensors.cache_seqlens = reinterpret_cast<const std::int32_t*>(kv.data());
  const Status status = shared ? gpu::launch_shares(problem, tensors, plan, schedule.data(), nullptr)
                               : gpu::launch_schedule(problem, tensors, plan, schedule.data(), nullptr);
  ASSERT_TRUE(status.ok()) << status.text;

  const auto fetch = [&]<class T>(std::string_view entry, std::size_t n, std::vector<T>& values) {
    values.resize(n);
    if (n == 0) return;
    ASSERT_TRUE(
        check::copy_out(MemoryKind::kCuda, values.data(), plan.schedule_memory.at<T>(schedule.data(), entry), n * sizeof(T))
            .ok());
  };
  std::vector<ScheduleHeader> header;
  fetch(kScheduleHeaderEntry, 1, header);
  ASSERT_EQ(header[0].n_items, static_cast<int>(expected.size()));
  ASSERT_EQ(header[0].n_slots, n_slots);
  ASSERT_EQ(header[0].n_merges, static_cast<int>(expected_merges.size()));
  ASSERT_EQ(header[0].next_item, 0);
  std::vector<WorkItem> items;
  std::vector<std::int32_t> merges;
  fetch(kItemsEntry, expected.size(), items);
  fetch(kMergeListEntry, expected_merges.size(), merges);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(items[i], expected[i]) << "item " << i;
  ASSERT_EQ(merges, expected_merges);
  if (!shared) return;
  std::vector<int> item_begin;
  build_shares(
      shape, [&](int seq) { return Lengths{batch.q_lens[seq], batch.kv_lens[seq]}; }, [](const WorkItem&) {}, &item_begin);
  std::vector<gpu::Share> shares;
  fetch(gpu::kSharesEntry, static_cast<std::size_t>(shape.n_shares), shares);
  for (int i = 0; i < shape.n_shares; ++i) {
    const gpu::Share& share = shares[i];
    ASSERT_EQ(share.item_end - share.item_begin, item_begin[i + 1] - item_begin[i]) << "share " << i;
    if (share.item_begin == share.item_end) continue;
    ASSERT_EQ(share.item_begin, item_begin[i]);
    ASSERT_EQ(share.first, expected[item_begin[i]]) << "share " << i;
    ASSERT_EQ(share.kv_len, batch.kv_lens[share.first.seq]);
    ASSERT_EQ(share.q_len, batch.q_lens[share.first.seq]);
    ASSERT_EQ(share.first_token, prefix[share.first.seq]);
  }
}

class GpuSchedule : public testing::Test {
 protected:
  void SetUp() override {
    Block probe;
    if (!Block::allocate(MemoryKind::kCuda, 16, probe).ok()) GTEST_SKIP() << "no CUDA device";
  }
  std::mt19937 random{1};
  int upto(int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); }
};

TEST_F(GpuSchedule, RandomBatches) {
  for (int trial = 0; trial < 150; ++trial) {
    ScheduleShape shape;
    shape.n_seqs = 1 + upto(trial % 10 == 0 ? 1500 : 20);
    shape.n_kv_heads = 1 + upto(3);
    shape.group = 1 + upto(8);
    shape.tile_rows = 16 << upto(3);
    shape.tile_keys = 32 << upto(2);
    if (upto(1)) shape.visible = visible_distances(true, upto(1) ? upto(200) : -1, -1);
    const int rule = upto(3);
    if (rule == 1) shape.max_parts = 1 + upto(40);
    if (rule == 2) shape.fixed_tiles_per_part = 1 + upto(8);
    if (rule == 3) shape.target_parts = 1 + upto(500);
    shape.min_tiles_per_part = 1 + upto(3);
    if (upto(2) == 0) shape.served_rows.begin = upto(60);
    shape.by_cost = upto(1);
    Batch batch;
    for (int seq = 0; seq < shape.n_seqs; ++seq) {
      batch.q_lens.push_back(upto(3) == 0 ? 0 : upto(upto(7) == 0 ? 2000 : 40));
      batch.kv_lens.push_back(upto(7) == 0 ? 0 : upto(3000));
    }
    ASSERT_NO_FATAL_FAILURE(expect_same_table(shape, batch)) << "trial " << trial;
  }
}

TEST_F(GpuSchedule, EqualShares) {
  for (int trial = 0; trial < 150; ++trial) {
    ScheduleShape shape;
    shape.n_seqs = 1 + upto(trial % 10 == 0 ? 1500 : 20);
    shape.n_kv_heads = 1 + upto(7);
    shape.group = 1 + upto(8);
    shape.tile_rows = 72;
    shape.n_shares = 1 + upto(trial % 2 == 0 ? 7 : gpu::kMaxShares - 1);
    if (upto(1)) shape.visible = visible_distances(true, upto(1) ? upto(200) : -1, -1);
    if (upto(2) == 0) shape.served_rows.end = upto(60);
    Batch batch;
    for (int seq = 0; seq < shape.n_seqs; ++seq) {
      batch.q_lens.push_back(upto(3) == 0 ? 0 : upto(8));
      batch.kv_lens.push_back(upto(7) == 0 ? 0 : upto(upto(9) == 0 ? 200000 : 3000));
    }
    ASSERT_NO_FATAL_FAILURE(expect_same_table(shape, batch)) << "trial " << trial;
  }
}

TEST_F(GpuSchedule, LongSequences) {
  ScheduleShape shape;
  shape.n_seqs = 3;
  shape.n_kv_heads = 8;
  shape.group = 8;
  shape.tile_rows = 128;
  shape.tile_keys = 64;
  shape.visible = visible_distances(true, -1, -1);
  shape.target_parts = 264;
  expect_same_table(shape, {{8192, 1, 32768}, {8192, 131072, 40000}});
  shape.tile_rows = 16;
  expect_same_table(shape, {{1, 1, 2}, {1 << 20, 7, 65536}});
}

}  // namespace
}  // namespace flashrel
