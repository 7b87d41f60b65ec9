#include "sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace inkling {
namespace {

TEST(Sampler, GreedyTakesTheFirstOfTheLikeliest) { EXPECT_EQ(Sampler({}).next(std::vector<float>{0, 3, -1, 3}), 1); }

TEST(Sampler, TheSameSeedDrawsTheSameTokensAndAnotherSeedOthers) {
  const std::vector<float> logits(256, 0.0f);
  const auto draw = [&](std::uint64_t seed) {
    Sampler sampler({1.0f, 0, seed});
    std::vector<int> tokens;
    for (int i = 0; i < 32; ++i) tokens.push_back(sampler.next(logits));
    return tokens;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST(Sampler, FrequenciesFollowTheTemperature) {
  const float temperature = 2.0f;
  const std::vector<float> logits = {0, 1, 2, -30};
  Sampler sampler({temperature, 0, 3});
  const int n = 20000;
  std::vector<int> counts(4);
  for (int i = 0; i < n; ++i) ++counts[sampler.next(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit / temperature);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(counts[i] / static_cast<double>(n), std::exp(logits[i] / temperature) / sum, 0.015) << i;
}

TEST(Sampler, TopKLeavesOutTheRest) {
  const std::vector<float> logits = {0.1f, 0.4f, 0.2f, 0.3f};
  Sampler sampler({100.0f, 2, 5});
  std::vector<int> counts(4);
  for (int i = 0; i < 400; ++i) ++counts[sampler.next(logits)];
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_GT(counts[1], 100);
  EXPECT_GT(counts[3], 100);
}

}  // namespace
}  // namespace inkling
