#include "check/generate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/definition.hpp"

namespace flashrel::check {
namespace {

Case parse(const std::string& line) {
  Case c;
  const Status status = parse_case(line, c);
  EXPECT_TRUE(status.ok()) << status.text;
  return c;
}

Truth truth_of(const std::string& line) {
  const HostProblem host = generate(parse(line), 7);
  Call call;
  const Status status = describe(host, call);
  EXPECT_TRUE(status.ok()) << line << ": " << status.text;
  return define(call.problem, call.tensors);
}

const std::string kBase = "q=5,0,9 kv=70,33,9 hq=4 hkv=2 d=16 extent=24 ";

TEST(Generate, LayoutPagesAndStridesDoNotChangeTheTruth) {
  const Truth truth = truth_of(kBase + "page=16");
  for (const char* other : {"page=1", "page=100", "page=16 layout=NHD", "page=16 layout=HND kv_pad=24", "page=16 shuffled=0",
                            "page=16 q_pad=8 out_pad=8 lse=head spare_pages=9 table_pad=3", "page=16 poison=1"}) {
    const Truth same = truth_of(kBase + other);
    EXPECT_EQ(same.out, truth.out) << other;
    EXPECT_EQ(same.lse, truth.lse) << other;
  }
}

TEST(Generate, PoisonIsOnlyWhereNoVisibleKeyLooks) {
  for (const char* line : {"window=7 page=4", "window=7 page=16 layout=HND", "causal=0 window=3:2 page=4",
                           "page=8 spare_tokens=3 bias=logits", "page=8 spare_tokens=3 rel_scale=1 q_pad=8"}) {
    const Truth truth = truth_of(kBase + line + " poison=1");
    for (double x : truth.out) EXPECT_TRUE(std::isfinite(x)) << line;
  }
  const HostProblem host = generate(parse(kBase + "window=7 page=4 poison=1"), 7);
  const auto* k = static_cast<const std::uint16_t*>(host.args.k_cache.data);
  std::int64_t n_nan = 0;
  for (std::int64_t i = 0; i < count_of(host.args.k_cache); ++i) n_nan += std::isnan(bf16_to_float(k[i]));
  EXPECT_GE(n_nan, 2 * 4 * 2 * 16) << "two spare pages at least";
}

TEST(Generate, OneHotResultsNameTheirKey) {
  const std::string line = "q=3 kv=200 hq=2 hkv=1 d=20 extent=64 content=onehot bias=logits";
  const Truth truth = truth_of(line);
  for (int row = 0; row < 6; ++row) {
    int key = 0;
    for (int bit = 0; bit < 20; ++bit) {
      const double x = truth.out[static_cast<std::size_t>(row * 20 + bit)];
      EXPECT_NEAR(std::fabs(x), 1.0, 1e-12);
      key |= (x > 0) << bit;
    }
    EXPECT_GE(key, 200 - 3 + row / 2 - 63);
    EXPECT_LE(key, 200 - 3 + row / 2);
  }
}

TEST(Generate, OutlineHasTheSameProblemWithoutTheMemory) {
  for (const char* line : {"page=4 layout=NHD lse=head q_pad=2", "bias=logits broadcast=1", "rel_scale=1 lse=0"}) {
    const Case c = parse(kBase + line);
    Call full, outlined;
    ASSERT_TRUE(validate(generate(c, 1).args, full).ok());
    ASSERT_TRUE(validate(outline(c).args, outlined).ok());
    outlined.problem.strides.lse_token = full.problem.strides.lse_token;  // outputs are outlined densely
    outlined.problem.strides.lse_head = full.problem.strides.lse_head;
    EXPECT_EQ(full.problem, outlined.problem) << line;
  }
  Call call;
  EXPECT_TRUE(validate(outline(parse("q=1 kv=1000000 b=64 hq=64 hkv=8")).args, call).ok()) << "16 TB of cache, planned at once";
}

TEST(Generate, SameSeedSameBits) {
  const Case c = parse(kBase);
  const HostProblem a = generate(c, 1), b = generate(c, 1), other = generate(c, 2);
  ASSERT_EQ(a.inputs.size(), b.inputs.size());
  for (std::size_t i = 0; i < a.inputs.size(); ++i)
    EXPECT_EQ(std::memcmp(a.inputs[i].data(), b.inputs[i].data(), a.inputs[i].bytes()), 0);
  EXPECT_NE(std::memcmp(a.args.q.data, other.args.q.data, 64), 0);
}

}  // namespace
}  // namespace flashrel::check
