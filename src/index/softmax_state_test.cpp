#include "index/softmax_state.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace flashrel {
namespace {

// A part of the softmax: scores and values of some keys. Its state by definition, in float64.
struct Key {
  double score, value;
};
struct State {
  float lse, out;
};

State state_of(const std::vector<Key>& keys) {
  double sum = 0, weighted = 0;
  for (const Key& key : keys) sum += std::exp(key.score), weighted += std::exp(key.score) * key.value;
  if (keys.empty()) return {kEmptyLse, std::nanf("")};  // an empty part's output may hold anything
  return {static_cast<float>(std::log(sum)), static_cast<float>(weighted / sum)};
}

// The merge as its users write it.
State merge(const std::vector<State>& parts) {
  float max_lse = kEmptyLse, sum = 0, out = 0;
  for (const State& part : parts) max_lse = std::max(max_lse, part.lse);
  for (const State& part : parts) {
    const float weight = part_weight(part.lse, max_lse);
    sum += weight;
    if (weight > 0) out += weight * part.out;
  }
  return {merged_lse(max_lse, sum), sum > 0 ? out / sum : 0};
}

std::vector<Key> keys_of(const std::vector<int>& numbers) {
  std::vector<Key> keys;
  for (int n : numbers) keys.push_back({(n % 1000) / 25.0, (n / 1000 % 100) / 10.0});
  return keys;
}

void expect_equal(const State& a, const State& b) {
  if (b.lse == kEmptyLse) {
    RC_ASSERT(a.lse == kEmptyLse);
    RC_ASSERT(a.out == 0.0f);
    return;
  }
  RC_ASSERT(std::fabs(a.lse - b.lse) <= 1e-5f * (1 + std::fabs(b.lse)));
  RC_ASSERT(std::fabs(a.out - b.out) <= 2e-5f * 10);
}

RC_GTEST_PROP(SoftmaxState, MergeOfAnyCutIsTheWhole, (const std::vector<std::vector<int>>& cut)) {
  std::vector<State> parts;
  std::vector<Key> all;
  for (const auto& numbers : cut) {
    const std::vector<Key> keys = keys_of(numbers);
    parts.push_back(state_of(keys));
    all.insert(all.end(), keys.begin(), keys.end());
  }
  expect_equal(merge(parts), state_of(all));
}

RC_GTEST_PROP(SoftmaxState, MergeIsAssociative,
              (const std::vector<int>& a, const std::vector<int>& b, const std::vector<int>& c)) {
  const State x = state_of(keys_of(a)), y = state_of(keys_of(b)), z = state_of(keys_of(c));
  const State whole = merge({x, y, z});
  expect_equal(merge({merge({x, y}), z}), whole);
  expect_equal(merge({x, merge({y, z})}), whole);
}

TEST(SoftmaxState, EmptyPartsAreNeutral) {
  EXPECT_EQ(part_weight(kEmptyLse, 3.0f), 0.0f);
  EXPECT_EQ(part_weight(kEmptyLse, kEmptyLse), 0.0f);
  EXPECT_EQ(merged_lse(kEmptyLse, 0.0f), kEmptyLse);
  EXPECT_EQ(merge({}).lse, kEmptyLse);
  const State part{1.25f, 7.0f}, empty{kEmptyLse, std::nanf("")};
  for (const auto& parts : std::vector<std::vector<State>>{{part}, {empty, part}, {part, empty}, {empty, part, empty}}) {
    EXPECT_EQ(merge(parts).lse, part.lse);
    EXPECT_EQ(merge(parts).out, part.out);
  }
}

TEST(SoftmaxState, FarApartPartsNeitherOverflowNorVanish) {
  const State small{-3e4f, 5.0f}, large{3e4f, -2.0f};
  EXPECT_EQ(merge({small, large}).lse, large.lse);
  EXPECT_EQ(merge({small, large}).out, large.out);
  EXPECT_EQ(merge({small, small}).out, small.out);
  EXPECT_NEAR(merge({small, small}).lse, small.lse + std::log(2.0f), 4e-3f);  // the step of float32 there
}

// A real NaN of the caller's (in q, say) must show, and not turn into "nothing is visible".
TEST(SoftmaxState, NanIsNotEmpty) {
  EXPECT_TRUE(std::isnan(merged_lse(std::nanf(""), std::nanf(""))));
  EXPECT_TRUE(std::isnan(merged_lse(1.0f, std::nanf(""))));
}

}  // namespace
}  // namespace flashrel
