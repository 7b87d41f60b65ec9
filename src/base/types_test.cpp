#include "base/types.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <ostream>

namespace flashrel {
namespace {

struct Format {
  const char* name;
  float (*to_float)(std::uint16_t);
  std::uint16_t (*from_float)(float);
  int mantissa_bits, min_exponent;  // min_exponent: of the smallest normal number
  float max;
};

void PrintTo(const Format& f, std::ostream* os) { *os << f.name; }

class HalfFormat : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(All, HalfFormat,
                         testing::Values(Format{"bf16", bf16_to_float, float_to_bf16, 7, -126, 0x1.fep127f},
                                         Format{"fp16", fp16_to_float, float_to_fp16, 10, -14, 65504.0f}),
                         [](const auto& test) { return test.param.name; });

// The value of a bit pattern by its definition: sign, exponent field, mantissa field.
double value_of(const Format& f, unsigned bits) {
  const int exponent_bits = 15 - f.mantissa_bits, all_ones = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> f.mantissa_bits) & all_ones,
            mantissa = static_cast<int>(bits & ((1u << f.mantissa_bits) - 1));
  const double sign = bits & 0x8000u ? -1 : 1;
  if (exponent == all_ones)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  return sign *
         (exponent == 0 ? std::ldexp(fraction, f.min_exponent) : std::ldexp(1 + fraction, exponent - 1 + f.min_exponent));
}

TEST_P(HalfFormat, EveryValueIsRightAndRoundTrips) {
  const Format& f = GetParam();
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const double expected = value_of(f, bits);
    const float found = f.to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(found)) << bits;
      ASSERT_TRUE(std::isnan(f.to_float(f.from_float(found)))) << bits;
      continue;
    }
    ASSERT_EQ(found, expected) << bits;
    ASSERT_EQ(std::signbit(found), std::signbit(expected)) << bits;
    ASSERT_EQ(f.from_float(found), bits);
  }
}

// Between neighbours a < b: everything below the middle goes to a, everything above to b, the middle to the even one.
TEST_P(HalfFormat, RoundsToNearestTiesToEven) {
  const Format& f = GetParam();
  for (unsigned bits = 0; std::isfinite(value_of(f, bits + 1)); ++bits) {
    const double a = value_of(f, bits), b = value_of(f, bits + 1);
    const auto middle = static_cast<float>((a + b) / 2);  // exact in float32
    ASSERT_EQ(static_cast<double>(middle), (a + b) / 2);
    const unsigned even = bits % 2 == 0 ? bits : bits + 1;
    for (unsigned sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f.from_float(s * middle), even + sign) << middle;
      ASSERT_EQ(f.from_float(s * std::nextafterf(middle, 0.0f)), bits + sign) << middle;
      ASSERT_EQ(f.from_float(s * std::nextafterf(middle, INFINITY)), bits + 1 + sign) << middle;
    }
  }
}

TEST_P(HalfFormat, OverflowIsInfinityAndNanStays) {
  const Format& f = GetParam();
  const unsigned infinity = f.from_float(INFINITY);
  EXPECT_EQ(value_of(f, infinity), INFINITY);
  EXPECT_EQ(f.from_float(-INFINITY), infinity + 0x8000u);
  EXPECT_EQ(f.from_float(f.max), infinity - 1);
  const float half_step = std::ldexp(f.max, -f.mantissa_bits - 2);  // far less than half a step: still the largest number
  EXPECT_EQ(f.from_float(f.max + half_step), infinity - 1);
  EXPECT_EQ(f.from_float(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(value_of(f, f.from_float(-std::numeric_limits<float>::max())), -INFINITY);
  EXPECT_EQ(f.from_float(-0.0f), 0x8000u);
  for (std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    EXPECT_TRUE(std::isnan(f.to_float(f.from_float(std::bit_cast<float>(nan))))) << nan;
}

#if defined(__FLT16_MAX__)
// The compiler's own binary16, over a dense sample of float32 (every 641st bit pattern of both signs).
TEST(Float16, EqualsTheCompilersConversion) {
  std::int64_t n_checked = 0;
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 641, ++n_checked) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const auto expected = std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value)))) << bits;
    else
      ASSERT_EQ(float_to_fp16(value), expected) << bits;
  }
  std::printf("%lld combinations\n", static_cast<long long>(n_checked));
}
#endif

TEST(LoadStore, EveryTypeAtItsIndex) {
  for (DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    float storage[4] = {};
    for (int i = 0; i < 4; ++i) store_float(storage, type, i, static_cast<float>(i) - 1.5f);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(load_float(storage, type, i), static_cast<float>(i) - 1.5f) << name_of(type);
    EXPECT_EQ(size_of(type), type == DType::kFloat32 ? 4u : 2u);
  }
}

}  // namespace
}  // namespace flashrel
