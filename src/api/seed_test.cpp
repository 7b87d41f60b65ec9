// The seed's own tables, row by row.
#include "api/seed.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace flashrel {
namespace {

TEST(Seed, BucketIsThePowerOfTwoAbove) {
  const std::int64_t table[][2] = {{-5, 1}, {0, 1},     {1, 1},     {2, 2},     {3, 4},       {4, 4},
                                   {5, 8},  {127, 128}, {128, 128}, {129, 256}, {8193, 16384}};
  for (const auto& [n, bucket] : table) EXPECT_EQ(bucket_max_seqlen_q(n), bucket) << n;
  EXPECT_EQ(bucket_max_seqlen_q((std::int64_t{1} << 40) + 1), std::int64_t{1} << 41);
}

TEST(Seed, ShearedBiasOnMajors10And11Only) {
  for (int major = 7; major <= 13; ++major) EXPECT_EQ(use_sheared_bias(major), major == 10 || major == 11) << major;
}

struct Row {
  std::int64_t batch, q_len, kv_len;
  std::int64_t splits[4];  // at tp 1, 2, 4, 8: 64 / tp query heads and 8 / tp KV heads; 0 = not in the seed's table
};

TEST(Seed, NumSplitsTable) {
  const Row table[] = {
      {1, 1, 131072, {16, 32, 128, 128}}, {8, 1, 131072, {2, 4, 8, 16}},     {32, 1, 131072, {1, 1, 2, 4}},
      {1, 128, 131072, {2, 4, 8, 16}},    {1, 2048, 131072, {1, 1, 1, 1}},   {1, 1, 8192, {0, 0, 32, 32}},
      {1, 1, 65536, {0, 0, 64, 64}},      {1, 1, 1048576, {0, 0, 128, 128}},
  };
  for (const Row& row : table)
    for (int i = 0, tp = 1; i < 4; ++i, tp *= 2) {
      const auto splits = [&](bool is_local, int major) {
        return inkling_fa4_num_splits({is_local, row.batch, row.q_len, 64 / tp, 8 / tp, row.kv_len, major});
      };
      if (row.splits[i] > 0) {
        EXPECT_EQ(splits(false, 10), row.splits[i]) << "batch " << row.batch << " q_len " << row.q_len << " tp " << tp;
      }
      EXPECT_EQ(splits(true, 10), 1);
      EXPECT_EQ(splits(false, 9), 1);
    }
}

TEST(Seed, ASplitHasAtLeast128Keys) {
  for (std::int64_t kv_len : {1, 127, 128, 129, 1000, 4096})
    EXPECT_LE(inkling_fa4_num_splits({false, 1, 1, 8, 1, kv_len, 10}), std::max<std::int64_t>(1, (kv_len + 127) / 128))
        << kv_len;
}

}  // namespace
}  // namespace flashrel
