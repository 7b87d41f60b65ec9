#include "kv_cache.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>

namespace inkling {
namespace {

Config two_layers() {
  Config config;
  config.n_q_heads = 2, config.head_dim = 4;
  config.layers = {{true, 2, 32, 32}, {false, 1, 0, 64}};
  return config;
}

TEST(BlockAllocator, HandsOutEveryPageOnceLowestFirst) {
  BlockAllocator allocator(5);
  for (int page = 0; page < 5; ++page) EXPECT_EQ(allocator.take(), page);
  EXPECT_THROW(allocator.take(), std::logic_error);
  allocator.give(3);
  allocator.give(1);
  EXPECT_EQ(allocator.n_free(), 2);
  EXPECT_EQ(allocator.take(), 1);
  EXPECT_EQ(allocator.take(), 3);
}

TEST(BlockAllocator, RefusesAPageThatIsNotTaken) {
  BlockAllocator allocator(2);
  const int page = allocator.take();
  EXPECT_THROW(allocator.give(page + 1), std::logic_error);
  EXPECT_THROW(allocator.give(-1), std::logic_error);
  EXPECT_THROW(allocator.give(2), std::logic_error);
  allocator.give(page);
  EXPECT_THROW(allocator.give(page), std::logic_error);
}

TEST(BlockAllocator, PromisesNoMoreThanThereIs) {
  BlockAllocator allocator(4);
  EXPECT_TRUE(allocator.promise(3));
  EXPECT_FALSE(allocator.promise(2));
  EXPECT_TRUE(allocator.promise(1));
  allocator.end_promise(3);
  EXPECT_TRUE(allocator.promise(2));
}

TEST(BlockAllocator, RandomUseNeverSharesAPage) {
  std::mt19937 random(1);
  BlockAllocator allocator(37);
  std::vector<int> taken;
  for (int i = 0; i < 20000; ++i) {
    if (!taken.empty() && (allocator.n_free() == 0 || random() % 2)) {
      std::swap(taken[random() % taken.size()], taken.back());
      allocator.give(taken.back());
      taken.pop_back();
    } else {
      taken.push_back(allocator.take());
    }
    ASSERT_EQ(std::set<int>(taken.begin(), taken.end()).size(), taken.size());
    ASSERT_EQ(allocator.n_free() + static_cast<int>(taken.size()), 37);
  }
}

// Sequences of random lengths, in random steps: the promised pages are always enough, visible pages are kept, others go back.
TEST(KvCache, PromisesHoldAndTheWindowIsKept) {
  const Config config = two_layers();
  std::mt19937 random(2);
  for (const int page_size : {1, 7, 16, 64}) {
    CacheOptions options;
    options.page_size = page_size;
    options.max_new_tokens = 24;
    options.n_pages[0] = 400 / page_size + 8, options.n_pages[1] = 160 / page_size + 8;
    KvCache cache(config, options);
    struct Member {
      Sequence sequence;
      std::int64_t end;
    };
    std::vector<Member> members;
    int n_refused = 0;
    for (int step = 0; step < 4000; ++step) {
      if (random() % 4 == 0) {
        Member member{{}, 1 + static_cast<std::int64_t>(random() % 150)};
        if (cache.admit(member.sequence, member.end))
          members.push_back(std::move(member));
        else
          ++n_refused;
      }
      if (members.empty()) continue;
      Member& member = members[random() % members.size()];
      Sequence& s = member.sequence;
      const std::int64_t n = std::min<std::int64_t>(member.end - s.length, 1 + random() % options.max_new_tokens);
      cache.extend(s, n);  // throws when a promise does not hold
      for (std::int64_t key = 0; key < s.length + n; ++key) {
        ASSERT_NE(s.pages[0][key / page_size], kNoPage);
        if (key > s.length - 32) {
          ASSERT_NE(s.pages[1][key / page_size], kNoPage) << "a visible key lost its page";
        }
      }
      ASSERT_LE(cache.n_pages_in_use(true), options.n_pages[1]);
      s.length += n;
      if (s.length == member.end) {
        cache.release(s);
        std::swap(member, members.back());
        members.pop_back();
      }
    }
    EXPECT_GT(n_refused, 0) << "the pools were never full";
    for (Member& member : members) cache.release(member.sequence);
    for (const bool local : {false, true}) {
      EXPECT_EQ(cache.n_pages_in_use(local), 0);
      EXPECT_TRUE(cache.admit(members.emplace_back().sequence, 1));
    }
  }
}

TEST(KvCache, StoresATokenWhereTheTableSays) {
  const Config config = two_layers();
  CacheOptions options{flashrel::DType::kFloat32, 16, {4, 4}, 16};
  KvCache cache(config, options);
  Sequence other, sequence;
  ASSERT_TRUE(cache.admit(other, 16) && cache.admit(sequence, 32));
  cache.extend(other, 16);
  cache.extend(sequence, 20);
  const float key[] = {1, 2, 3, 4, 5, 6, 7, 8}, value[] = {-1, -2, -3, -4, -5, -6, -7, -8};
  cache.store(0, sequence, 18, key, value);  // page entry 1, slot 2
  const flashrel_tensor k = cache.keys(0), v = cache.values(0);
  const std::int64_t offset = sequence.pages[1][1] * k.stride[0] + 2 * k.stride[1];
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(static_cast<const float*>(k.data)[offset + i], key[i]);
    EXPECT_EQ(static_cast<const float*>(v.data)[offset + i], value[i]);
  }
}

}  // namespace
}  // namespace inkling
