#include "check/judge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "check/generate.hpp"
#include "check/naive.hpp"

namespace flashrel::check {
namespace {

struct Judged {
  HostProblem host;
  Reference reference;
  RunResult result;  // of the naive computation
};

Judged judged(const std::string& line) {
  Case c;
  EXPECT_TRUE(parse_case(line, c).ok());
  Judged j{generate(c, 3), {}, {}};
  EXPECT_TRUE(make_reference(j.host, 0, j.reference).ok());
  Call call;
  EXPECT_TRUE(describe(j.host, call).ok());
  const auto n = static_cast<std::size_t>(call.problem.n_tokens * call.problem.n_q_heads);
  j.result.out.resize(n * static_cast<std::size_t>(call.problem.head_dim));
  j.result.lse.resize(n);
  for (const RowPlace& row : j.reference.rows) {
    const auto place = static_cast<std::size_t>(row.token * call.problem.n_q_heads + row.head);
    naive_row(call.problem, call.tensors, row, &j.result.out[place * static_cast<std::size_t>(call.problem.head_dim)],
              &j.result.lse[place]);
  }
  return j;
}

const char* const kLines[] = {"q=5,3 kv=70,2 hq=4 hkv=2 d=16 extent=24 window=40",
                              "q=2 kv=50 hq=2 hkv=1 d=8 bias=logits extent=9 rel_dtype=fp32 dtype=fp16",
                              "q=4 kv=30 hq=2 hkv=1 d=8 rel_scale=1 edge=clamp rel_zero=4 causal=0 dtype=fp32 extent=9"};

TEST(Judge, TheNaiveResultPasses) {
  for (const char* line : kLines) {
    const Judged j = judged(line);
    const Verdict verdict = judge(j.host, j.reference, j.result);
    EXPECT_TRUE(verdict.passed) << verdict.text;
    EXPECT_LE(verdict.worst, 0.5);
  }
}

TEST(Judge, OneWrongColumnFailsAndIsNamed) {
  for (const char* line : kLines) {
    Judged j = judged(line);
    const std::size_t d = static_cast<std::size_t>(j.reference.head_dim), last = j.result.out.size() - 1;
    j.result.out[last] += 0.05f;
    const Verdict verdict = judge(j.host, j.reference, j.result);
    EXPECT_FALSE(verdict.passed);
    EXPECT_EQ(verdict.n_wrong, 1);
    EXPECT_NE(verdict.text.find("column " + std::to_string(d - 1)), std::string::npos) << verdict.text;
  }
}

TEST(Judge, NaNNeverPasses) {
  Judged j = judged(kLines[0]);
  const float saved = j.result.out[5];
  j.result.out[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
  j.result.out[5] = saved;
  j.result.lse[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
}

TEST(Judge, RowsThatSeeNothingMustBeZeroWithInfiniteLse) {
  Judged j = judged("q=3 kv=1 hq=1 hkv=1 d=8 extent=4");
  EXPECT_TRUE(judge(j.host, j.reference, j.result).passed);
  EXPECT_EQ(j.result.lse[0], -std::numeric_limits<float>::infinity());
  j.result.lse[0] = -1e30f;
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
}

TEST(Judge, AWrongExpectedResultExcusesNothing) {
  Judged j = judged(kLines[0]);
  j.host.expected_out.assign(j.reference.out.begin(), j.reference.out.end());
  j.host.expected_lse.assign(j.reference.lse.begin(), j.reference.lse.end());
  ASSERT_TRUE(make_reference(j.host, 0, j.reference).ok());
  EXPECT_TRUE(judge(j.host, j.reference, j.result).passed);
  j.host.expected_out[5] += 0.5f;
  ASSERT_TRUE(make_reference(j.host, 0, j.reference).ok());
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
  j.host.expected_out[5] -= 0.5f;
  j.host.expected_lse[2] += 0.5f;
  ASSERT_TRUE(make_reference(j.host, 0, j.reference).ok());
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
}

TEST(Judge, DamageAndErrorsFail) {
  Judged j = judged(kLines[0]);
  j.result.damage = "out: the byte at offset -1 was written";
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
  j.result.damage.clear();
  j.result.status = invalid("q: absent");
  EXPECT_FALSE(judge(j.host, j.reference, j.result).passed);
}

TEST(Judge, SpotChecksTakeFirstAndLastRow) {
  const Judged j = judged(kLines[0]);
  Reference spot;
  ASSERT_TRUE(make_reference(j.host, 5, spot).ok());
  ASSERT_EQ(spot.rows.size(), 5u);
  EXPECT_EQ(spot.rows.front().token, 0);
  EXPECT_EQ(spot.rows.back().token, 7);
  EXPECT_EQ(spot.rows.back().head, 3);
}

}  // namespace
}  // namespace flashrel::check
