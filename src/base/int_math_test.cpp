#include "base/int_math.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace flashrel {
namespace {

TEST(IntMath, FloorDivRoundsTowardsMinusInfinity) {
  for (int b = 1; b <= 40; ++b)
    for (int a = -200; a <= 200; ++a) {
      const int q = floor_div(a, b);
      ASSERT_TRUE(q * b <= a && a < (q + 1) * b) << a << " / " << b << " gave " << q;
    }
  EXPECT_EQ(floor_div(std::numeric_limits<int>::min(), 1), std::numeric_limits<int>::min());
  EXPECT_EQ(floor_div(std::numeric_limits<int>::min(), 128), -(1 << 24));
  EXPECT_EQ(floor_div<std::int64_t>(-1, std::int64_t{1} << 40), -1);
}

TEST(IntMath, CeilDivAndRoundUpAreTheSmallestThatFit) {
  for (int b = 1; b <= 40; ++b)
    for (int a = 0; a <= 200; ++a) {
      const int q = ceil_div(a, b);
      ASSERT_TRUE(q * b >= a && (q - 1) * b < a) << a << " / " << b << " gave " << q;
      ASSERT_EQ(round_up(a, b), q * b);
    }
  EXPECT_EQ(ceil_div<std::int64_t>((std::int64_t{1} << 40) + 1, 2), (std::int64_t{1} << 39) + 1);
}

TEST(IntMath, ClampTo) {
  EXPECT_EQ(clamp_to(-5, -3, 9), -3);
  EXPECT_EQ(clamp_to(-3, -3, 9), -3);
  EXPECT_EQ(clamp_to(4, -3, 9), 4);
  EXPECT_EQ(clamp_to(10, -3, 9), 9);
}

// Small divisors and those beside powers of two, over every numerator that stands beside a multiple, and both ends.
TEST(IntMath, FastDivEqualsDivision) {
  constexpr std::int64_t kTop = std::numeric_limits<int>::max();
  std::vector<std::int64_t> divisors;
  for (int d = 1; d <= 300; ++d) divisors.push_back(d);
  for (int bit = 9; bit <= 31; ++bit)
    for (int step : {-1, 0, 1})
      if ((std::int64_t{1} << bit) + step <= kTop) divisors.push_back((std::int64_t{1} << bit) + step);
  std::int64_t n_checked = 0;
  for (const std::int64_t d : divisors) {
    const FastDiv fast(static_cast<std::uint32_t>(d));
    const auto check = [&](std::int64_t n) {
      if (n < 0 || n > kTop || testing::Test::HasFatalFailure()) return;
      ++n_checked;
      ASSERT_EQ(fast.quotient(static_cast<int>(n)), n / d) << n << " / " << d;
      ASSERT_EQ(fast.remainder(static_cast<int>(n)), n % d) << n << " % " << d;
    };
    const std::int64_t stride = (kTop / d) / 2000 + 1;  // some 2,000 multiples of d, from end to end
    for (std::int64_t q = 0; q * d <= kTop; q += stride)
      for (std::int64_t n = q * d - 1; n <= q * d + 1; ++n) check(n);
    for (std::int64_t n = 0; n < 2000; ++n) check(n), check(kTop - n), check((kTop / d) * d - n);
  }
  std::printf("%lld combinations\n", static_cast<long long>(n_checked));
}

}  // namespace
}  // namespace flashrel
