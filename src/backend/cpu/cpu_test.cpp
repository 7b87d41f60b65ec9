// The CPU backend against the definition, on every instruction set that this machine has.
#include "backend/cpu/cpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/parallel.hpp"
#include "check/case_line.hpp"
#include "check/generate.hpp"
#include "check/judge.hpp"

namespace flashrel {
namespace {

using check::Case;
using check::HostProblem;
using check::RunResult;

Case parse(const std::string& line) {
  Case c;
  const Status status = check::parse_case(line, c);
  EXPECT_TRUE(status.ok()) << status.text;
  return c;
}

RunResult run(HostProblem& host, bool deterministic = false) {
  return check::run_host(host, {.backend = "cpu", .deterministic = deterministic});
}

// Without a look at page numbers, and without touching the outputs before.
Status run_as_it_is(HostProblem& host) {
  check::Placement placement;
  FLASHREL_RETURN_IF_ERROR(check::Placement::create(host, {.backend = "cpu", .validate = false}, placement));
  return placement.launch();
}

class CpuTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::force_isa("").ok()); }

  // The case with NaN wherever no visible key looks, judged row by row.
  static void check_case(const std::string& line) {
    HostProblem host = check::generate(parse(line + " poison=1"), 1);
    check::Reference reference;
    const Status status = check::make_reference(host, 0, reference);
    ASSERT_TRUE(status.ok()) << line << ": " << status.text;
    const check::Verdict verdict = check::judge(host, reference, run(host));
    EXPECT_TRUE(verdict.passed) << GetParam() << ": " << verdict.text;
  }
};

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const cpu::IsaState& state : cpu::isa_states())
    if (state.reason.empty()) names.push_back(state.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Isa, CpuTest, testing::ValuesIn(usable_isas()), [](const auto& param) { return param.param; });

TEST_P(CpuTest, Dtypes) {
  for (const char* dtype : {"fp32", "fp16", "bf16"})
    for (const char* bias : {"none", "logits", "fused"})
      check_case(std::string("q=33,0,1,5 kv=300,40,129,5 hq=4 d=64 extent=64 page=16 spare_tokens=2 lse=head dtype=") + dtype +
                 " bias=" + bias);
  for (const char* rel : {"fp32", "fp16", "bf16"})
    check_case(std::string("q=20 kv=90 hq=2 d=32 extent=50 bias=logits dtype=bf16 broadcast=1 rel_dtype=") + rel);
}

TEST_P(CpuTest, HeadDims) {
  for (int head_dim : {1, 7, 32, 33, 64, 80, 128, 192, 256, 512})
    for (const char* dtype : {"fp32", "bf16"})
      check_case("q=19 kv=150 hq=4 extent=64 out_pad=3 q_pad=5 bias=fused dtype=" + std::string(dtype) +
                 " d=" + std::to_string(head_dim));
}

TEST_P(CpuTest, HeadsPagesLayouts) {
  const char* heads[] = {"hq=1 hkv=1", "hq=3 hkv=1",  "hq=4 hkv=1",   "hq=8 hkv=1",
                         "hq=8 hkv=2", "hq=16 hkv=2", "hq=24 hkv=24", "hq=40 hkv=1"};
  const char* pages[] = {"1", "13 layout=NHD", "16 layout=HND", "100", "256 kv_pad=7", "7", "64 layout=NHD kv_pad=9", "2"};
  for (int i = 0; i < 8; ++i)
    check_case(std::string("q=21,3 kv=131,260 d=64 extent=100 bias=fused rel_scale=1 window=") + (i % 2 ? "50 " : "-1 ") +
               heads[i] + " page=" + pages[i]);
}

TEST_P(CpuTest, BandsAndWindows) {
  for (const char* bias : {"logits", "fused"})
    for (const char* edge : {"zero", "clamp"})
      for (const char* extent : {"1", "64", "401"})
        for (const char* where : {"rel_zero=0", "rel_zero=37 causal=0", "rel_zero=-20", "rel_zero=500", "rel_zero=-500"})
          for (const char* window : {"-1", "0", "100", "70:11"})
            check_case(std::string("q=40 kv=400 hq=3 d=32 bias=") + bias + " edge=" + edge + " extent=" + extent + " " + where +
                       " window=" + window);
}

TEST_P(CpuTest, FewerKeysThanQueries) {
  check_case("q=50,3,9 kv=20,0,1 hq=4 d=64 extent=64 bias=fused");
  check_case("q=50,3,9 kv=20,0,1 hq=4 d=64 extent=64 bias=fused causal=0 window=5");
}

TEST_P(CpuTest, Splits) {
  for (int splits : {0, 1, 3, 128})
    for (const char* q : {"1", "9"})
      check_case(std::string("q=") + q + " kv=2600,700 b=2 hq=8 d=32 extent=1024 bias=fused splits=" + std::to_string(splits));
}

TEST_P(CpuTest, RevealingBias) {
  for (const char* content : {"onehot", "zeroq", "random"})
    for (const char* bias : {"logits", "fused"})
      check_case(std::string("q=66 kv=400 hq=8 d=32 extent=200 gain=16 content=") + content + " bias=" + bias);
}

TEST_P(CpuTest, DeterministicBits) {
  const Case batch = parse("q=40,1,3 kv=900,5000,77 hq=8 d=64 extent=1024 bias=fused");
  HostProblem host = check::generate(batch, 3);
  ASSERT_TRUE(set_num_threads(1).ok());
  const RunResult first = run(host, true);
  ASSERT_TRUE(set_num_threads(5).ok());
  const RunResult again = run(host, true);
  ASSERT_TRUE(set_num_threads(0).ok());
  ASSERT_TRUE(first.status.ok()) << first.status.text;
  EXPECT_EQ(first.out, again.out);
  EXPECT_EQ(first.lse, again.lse);
  // Each sequence again in a batch whose other sequences are empty.
  std::size_t row = 0;
  for (std::size_t seq = 0; seq < 3; ++seq) {
    Case alone = batch;
    for (std::size_t i = 0; i < 3; ++i)
      if (i != seq) alone.kv_lens[i] = 0;
    HostProblem other = check::generate(alone, 3);
    const RunResult result = run(other, true);
    ASSERT_TRUE(result.status.ok()) << result.status.text;
    const std::size_t end = row + static_cast<std::size_t>(batch.q_lens[seq]) * 8;
    for (; row < end; ++row) {
      ASSERT_EQ(result.lse[row], first.lse[row]) << "row " << row;
      for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(result.out[row * 64 + i], first.out[row * 64 + i]) << "row " << row;
    }
  }
}

TEST_P(CpuTest, NothingToDo) {
  check_case("b=0 q=0 kv=0 hq=4 bias=none");
  check_case("q=0,0 kv=10,0 hq=4 bias=fused spare_tokens=3");
  check_case("q=4 kv=0 hq=4 bias=none");
}

TEST_P(CpuTest, WildPageHarmsOnlyItsSequence) {
  for (std::int32_t wild : {-1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    HostProblem host = check::generate(parse("q=4,4 kv=64,64 hq=4 page=16 bias=none"), 1);
    const RunResult right = run(host);
    static_cast<std::int32_t*>(host.args.block_table.data)[1] = wild;
    ASSERT_TRUE(right.status.ok()) << right.status.text;
    ASSERT_TRUE(run_as_it_is(host).ok());
    const std::size_t n = right.out.size();
    for (std::size_t i = n / 2; i < n; ++i)
      ASSERT_EQ(load_float(host.args.out.data, DType::kBFloat16, static_cast<std::int64_t>(i)), right.out[i]);
  }
}

TEST_P(CpuTest, LengthsPastTheBoundsAreRefused) {
  const auto refusal = [](auto&& spoil) {
    HostProblem host = check::generate(parse("q=4,4 kv=64,64 hq=4 page=16 bias=none table_pad=0"), 1);
    spoil(static_cast<std::int32_t*>(host.args.cu_seqlens_q.data), static_cast<std::int32_t*>(host.args.cache_seqlens.data));
    const auto* out = static_cast<const std::uint16_t*>(host.args.out.data);
    const std::vector<std::uint16_t> before(out, out + check::count_of(host.args.out));
    const Status status = run_as_it_is(host);
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), out)) << "something was written";
    return status.text;
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_PRED2(contains, refusal([](auto*, auto* kv) { kv[1] = 65; }), "cache_seqlens[1]: got 65");
  EXPECT_PRED2(contains, refusal([](auto*, auto* kv) { kv[0] = -1; }), "cache_seqlens[0]: got -1");
  EXPECT_PRED2(contains, refusal([](auto* cu, auto*) { cu[1] = 3; }), "q_len[1]: got 5");
  EXPECT_PRED2(contains, refusal([](auto* cu, auto*) { cu[0] = 1; }), "cu_seqlens_q[0]: got 1");
}

TEST(CpuIsa, Inventory) {
  for (const cpu::IsaState& state : cpu::isa_states())
    std::printf("cpu instruction set %s: %s\n", state.name.c_str(), state.reason.empty() ? "tested" : state.reason.c_str());
  EXPECT_FALSE(usable_isas().empty());
}

TEST(CpuIsa, ForcingAnUnknownNameSaysWhatThereIs) {
  const Status status = cpu::force_isa("sse9");
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.text.find("got 'sse9', expected one of scalar"), std::string::npos) << status.text;
}

TEST(CpuIsa, ForcingChangesTheOneInUse) {
  ASSERT_TRUE(cpu::force_isa("scalar").ok());
  EXPECT_EQ(cpu::isa_in_use(), "scalar");
  ASSERT_TRUE(cpu::force_isa("").ok());
}

}  // namespace
}  // namespace flashrel
