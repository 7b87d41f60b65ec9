#include "base/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace flashrel {
namespace {

class ParallelTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(set_parallel_for(nullptr, nullptr, 0).ok());
    EXPECT_TRUE(set_num_threads(0).ok());
  }
};

// Counts how often each index was run.
struct Counts {
  explicit Counts(int n) : times(static_cast<std::size_t>(n)) {}
  std::vector<std::atomic<int>> times;

  static void count(void* context, int index) { ++static_cast<Counts*>(context)->times[static_cast<std::size_t>(index)]; }
  void expect_all(int expected) const {
    for (const auto& t : times) EXPECT_EQ(t.load(), expected);
  }
};

TEST_F(ParallelTest, EveryIndexOnceForAnyWidth) {
  for (int width : {1, 2, 3, 8}) {
    ASSERT_TRUE(set_num_threads(width).ok());
    EXPECT_EQ(parallel_width(), width);
    for (int n : {0, 1, 2, 7, 1000}) {
      Counts counts(n);
      parallel_for(n, &Counts::count, &counts);
      counts.expect_all(1);
    }
  }
}

TEST_F(ParallelTest, TasksOfOneCallRunAtTheSameTime) {
  ASSERT_TRUE(set_num_threads(3).ok());
  std::atomic<int> waiting{0};
  // Ends only when all three have arrived.
  const Task meet = [](void* context, int) {
    auto& n = *static_cast<std::atomic<int>*>(context);
    ++n;
    while (n.load() < 3) std::this_thread::yield();
  };
  parallel_for(3, meet, &waiting);
  EXPECT_EQ(waiting.load(), 3);
}

TEST_F(ParallelTest, ACallInsideATaskRunsSerially) {
  ASSERT_TRUE(set_num_threads(4).ok());
  Counts counts(50);
  const Task nested = [](void* context, int) { parallel_for(50, &Counts::count, context); };
  parallel_for(8, nested, &counts);
  counts.expect_all(8);
}

TEST_F(ParallelTest, ConcurrentCallersTakeTurns) {
  ASSERT_TRUE(set_num_threads(3).ok());
  Counts counts(64);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) parallel_for(64, &Counts::count, &counts);
    });
  for (std::thread& caller : callers) caller.join();
  counts.expect_all(800);
}

TEST_F(ParallelTest, TheHostsThreadsAreUsedWhenLent) {
  static int n_calls;
  n_calls = 0;
  int pool = 0;
  const ParallelFor hook = [](void* lent, int n_tasks, Task task, void* context) {
    ++*static_cast<int*>(lent);
    ++n_calls;
    for (int i = n_tasks - 1; i >= 0; --i) task(context, i);
  };
  ASSERT_TRUE(set_parallel_for(hook, &pool, 6).ok());
  EXPECT_EQ(parallel_width(), 6);
  Counts counts(20);
  parallel_for(20, &Counts::count, &counts);
  counts.expect_all(1);
  EXPECT_EQ(pool, 1);
  EXPECT_EQ(n_calls, 1);
}

TEST_F(ParallelTest, BadThreadCountsAreRefused) {
  EXPECT_EQ(set_num_threads(-1).text, "n_threads: got -1, expected 0 (automatic) to 4096");
  const ParallelFor hook = [](void*, int, Task, void*) {};
  EXPECT_EQ(set_parallel_for(hook, nullptr, 0).text, "n_threads: got 0, expected at least 1 with a parallel_for");
}

}  // namespace
}  // namespace flashrel
