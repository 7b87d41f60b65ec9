// A plan depends on Problem, Device and Options alone; its bounds hold whatever the lengths turn out to be.
#include "plan/make_plan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/backend.hpp"

namespace flashrel {
namespace {

// A call of `n_seqs` sequences of `q_len` rows on up to `kv_len` keys, Inkling's global layer in one of 8 shares.
Problem make_problem(MemoryKind memory, int n_seqs, std::int64_t q_len, std::int64_t kv_len) {
  Problem p;
  p.memory = memory;
  p.n_seqs = n_seqs;
  p.n_tokens = n_seqs * q_len;
  p.n_q_heads = 8, p.n_kv_heads = 1, p.head_dim = 128, p.page_size = 64;
  p.max_pages = (kv_len + 63) / 64;
  p.n_pages = p.max_pages * n_seqs;
  p.max_seqlen_q = q_len, p.max_seqlen_k = kv_len;
  p.bias = BiasMode::kFused;
  p.rel_extent = 1024, p.d_rel = 16;
  p.softmax_scale = 1.0 / 128;
  p.visible = visible_distances(true, -1, -1);
  p.band = band_distances(0, 1024, RelEdge::kZero);
  Strides& s = p.strides;
  s.q_head = s.out_head = 128, s.q_token = s.out_token = 8 * 128;
  s.k_head = s.v_head = 128, s.k_slot = s.v_slot = 128, s.k_page = s.v_page = 64 * 128;
  s.table_seq = p.max_pages;
  s.rel_head = 16, s.rel_token = 8 * 16, s.rel_proj_row = 1024;
  return p;
}

Device make_device(MemoryKind memory, int major = 9, int minor = 0) {
  Device d;
  d.memory = memory;
  d.capability_major = major, d.capability_minor = minor;
  d.n_sms = 132, d.max_smem_bytes = 227 * 1024;
  d.n_threads = 8;
  return d;
}

// Every backend of the build, forced, on a machine that may not be there.
struct Target {
  const Backend* backend;
  Device device;
  Options options;
};

std::vector<Target> targets() {
  std::vector<Target> all;
  for (MemoryKind memory : {MemoryKind::kHost, MemoryKind::kCuda})
    for (const Backend* backend : backends_for(memory)) {
      const bool blackwell = backend->name.substr(0, 5) == "sm100";
      all.push_back({backend, make_device(memory, blackwell ? 10 : 9), {.backend = std::string(backend->name)}});
    }
  return all;
}

Plan plan_of(const Target& t, const Problem& problem, const Options& options) {
  Plan plan;
  const Status status = make_plan(problem, t.device, options, plan);
  EXPECT_TRUE(status.ok()) << status.text;
  return plan;
}

TEST(MakePlan, SameProblemSamePlan) {
  for (const Target& t : targets()) {
    const Problem problem = make_problem(t.device.memory, 3, 40, 5000);
    const Plan a = plan_of(t, problem, t.options), b = plan_of(t, problem, t.options);
    EXPECT_EQ(a.backend, b.backend);
    EXPECT_TRUE(a.policy == b.policy && a.schedule == b.schedule);
    EXPECT_TRUE(a.bounds.n_items == b.bounds.n_items && a.bounds.n_slots == b.bounds.n_slots);
    ASSERT_EQ(a.workspace.entries().size(), b.workspace.entries().size());
    for (std::size_t i = 0; i < a.workspace.entries().size(); ++i) {
      EXPECT_EQ(a.workspace.entries()[i].name, b.workspace.entries()[i].name);
      EXPECT_EQ(a.workspace.entries()[i].offset, b.workspace.entries()[i].offset);
      EXPECT_EQ(a.workspace.entries()[i].bytes, b.workspace.entries()[i].bytes);
    }
  }
}

// The booked tables hold the schedule of any lengths within the bounds.
TEST(MakePlan, TheWorkspaceHoldsEverySchedule) {
  const std::vector<std::vector<Lengths>> batches{{{1, 70000}, {1, 70000}, {1, 70000}},
                                                  {{40, 70000}, {0, 0}, {40, 1}},
                                                  {{0, 9}, {0, 0}, {3, 40}},
                                                  {{1, 1}, {40, 300}, {40, 65000}}};
  for (const Target& t : targets())
    for (const bool deterministic : {false, true})
      for (const int num_splits : {0, 1, 3, 128, 1 << 30}) {
        Options options = t.options;
        options.deterministic = deterministic, options.num_splits = num_splits;
        const Plan plan = plan_of(t, make_problem(t.device.memory, 3, 40, 70000), options);
        EXPECT_GE(plan.schedule_memory.total_bytes(), static_cast<std::size_t>(plan.bounds.n_items) * sizeof(WorkItem));
        for (const auto& batch : batches) {
          std::int64_t n_items = 0;
          const int n_slots =
              build_schedule(plan.schedule, [&](int seq) { return batch[seq]; }, [&](const WorkItem&) { ++n_items; });
          EXPECT_TRUE(n_items <= plan.bounds.n_items && n_slots <= plan.bounds.n_slots)
              << t.backend->name << " num_splits " << num_splits;
        }
      }
}

TEST(MakePlan, NumSplitsIsAtMost) {
  for (const Target& t : targets())
    for (const bool deterministic : {false, true})
      for (const int num_splits : {1, 2, 7}) {
        Options options = t.options;
        options.num_splits = num_splits, options.deterministic = deterministic;
        const Plan plan = plan_of(t, make_problem(t.device.memory, 2, 1, 100000), options);
        build_schedule(
            plan.schedule, [](int) { return Lengths{1, 100000}; },
            [&](const WorkItem& item) { EXPECT_LE(item.n_parts, num_splits) << t.backend->name; });
      }
}

// With `deterministic` the cut of a sequence and the tiles it is made of do not depend on the batch, not even on its bounds.
TEST(MakePlan, DeterministicPlansDoNotSeeTheBatch) {
  for (const Target& t : targets())
    for (const int num_splits : {0, 1, 5, 64})
      for (const Lengths lengths : {Lengths{1, 90000}, Lengths{5, 3000}, Lengths{300, 300}}) {
        Options options = t.options;
        options.deterministic = true, options.num_splits = num_splits;
        const auto items_of = [&](int n_seqs, std::int64_t max_q, std::int64_t max_k) {
          const Plan whole = plan_of(t, make_problem(t.device.memory, n_seqs, max_q, max_k), options);
          std::vector<const Plan*> plans{&whole};
          for (const Plan& few : whole.few_rows) plans.push_back(&few);
          std::vector<WorkItem> items;
          for (const Plan* plan : plans) {
            EXPECT_EQ(plan->schedule.tile_rows, plan->policy.tile_rows);
            build_schedule(
                plan->schedule,
                [&](int seq) { return seq == 0 ? lengths : Lengths{static_cast<int>(max_q), static_cast<int>(max_k)}; },
                [&](WorkItem item) {
                  item.slot = 0;
                  if (item.seq == 0) items.push_back(item);
                });
          }
          return items;
        };
        const auto alone = items_of(1, lengths.q_len, lengths.kv_len);
        EXPECT_EQ(items_of(4, 500, 100000), alone)
            << t.backend->name << " num_splits " << num_splits << " q_len " << lengths.q_len;
        EXPECT_EQ(items_of(300, 300, 90000), alone)
            << t.backend->name << " num_splits " << num_splits << " q_len " << lengths.q_len;
      }
}

// 103 GiB were asked for elsewhere at 256K keys: memory grows with tokens, never with tokens x keys.
TEST(MakePlan, TheWorkspaceDoesNotGrowWithTokensTimesKeys) {
  for (const Target& t : targets())
    for (const int num_splits : {0, 128}) {
      Options options = t.options;
      options.num_splits = num_splits;
      const auto bytes_at = [&](std::int64_t q_len, std::int64_t kv_len) {
        return plan_of(t, make_problem(t.device.memory, 1, q_len, kv_len), options).workspace.total_bytes();
      };
      EXPECT_LE(bytes_at(8192, 262144), bytes_at(8192, 16384) + (std::size_t{1} << 30)) << t.backend->name;
      EXPECT_LE(bytes_at(8192, 262144), std::size_t{2} << 30) << t.backend->name;
      EXPECT_LE(bytes_at(1, 1 << 20), std::size_t{256} << 20) << t.backend->name;
    }
}

TEST(MakePlan, EmptyCallsHavePlans) {
  for (const Target& t : targets())
    for (const auto& [n_seqs, q_len, kv_len] : {std::tuple{0, 0, 0}, std::tuple{2, 0, 10}, std::tuple{2, 3, 0}}) {
      const Plan plan = plan_of(t, make_problem(t.device.memory, n_seqs, q_len, kv_len), t.options);
      EXPECT_EQ(plan.bounds.n_slots, 0);
    }
}

}  // namespace
}  // namespace flashrel
