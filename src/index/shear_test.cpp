#include "index/shear.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace flashrel {
namespace {

// Entry that the contract reads, or -1 for bias 0.
std::int64_t entry_by_contract(int dist, std::int64_t rel_zero, std::int64_t extent, RelEdge edge) {
  if (!band_distances(rel_zero, extent, edge).contains(dist)) return -1;
  return bias_index(dist, rel_zero, extent);
}

TEST(Shear, EveryPositionOfARunReadsItsOwnEntry) {
  long long checked = 0;
  for (const RelEdge edge : {RelEdge::kZero, RelEdge::kClamp})
    for (const int extent : {1, 7, 16, 63, 64, 65, 300})
      for (const int rel_zero : {-70, -1, 0, 1, 5, 299, 1000})
        for (const int n_keys : {8, 16, 32, 64})
          for (int q_pos = -140; q_pos < 520; ++q_pos)
            for (const int first_key : {0, 8, 64, 256}) {
              const int first = first_index(q_pos, first_key, rel_zero, extent, n_keys);
              ASSERT_TRUE(first - (n_keys - 1) >= -n_keys && first < extent + n_keys);
              for (int c = 0; c < n_keys; c += c + 1 == n_keys ? 1 : max_of(1, n_keys / 8 - 1)) {
                const std::int64_t expected = entry_by_contract(q_pos - (first_key + c), rel_zero, extent, edge);
                const bool clamped = edge == RelEdge::kClamp;
                const int index = first - c;
                const std::int64_t found = reads_entry(index, extent, clamped) ? nearest_entry(index, extent) : -1;
                const int start = window_start(first, extent, n_keys);
                const int entry = nearest_entry(index, extent);
                ASSERT_TRUE(0 <= start && start <= entry && entry < min_of(start + n_keys, extent));
                ASSERT_EQ(found, expected) << "extent " << extent << " rel_zero " << rel_zero << " q_pos " << q_pos << " key "
                                           << first_key + c << " clamped " << clamped;
                ++checked;
              }
            }
  std::printf("%lld combinations\n", checked);
}

TEST(Shear, FarPositionsDoNotOverflow) {
  EXPECT_EQ(first_index(kMaxLength - 1, 0, kMaxLength, 1024, 32), 1024 + 31);
  EXPECT_EQ(first_index(-(kMaxLength - 1), kMaxLength - 1, -kMaxLength, 1024, 32), -1);
}

}  // namespace
}  // namespace flashrel
