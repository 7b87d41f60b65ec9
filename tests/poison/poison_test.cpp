// Faults that other implementations of this operator had, each as a named test, with NaN in every page, page tail, table
// entry, workspace byte and output element that the contract says does not matter.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "support/runners.hpp"

namespace flashrel::test {
namespace {

using check::HostProblem;

struct Fault {
  const char* name;
  const char* case_line;
};

void PrintTo(const Fault& fault, std::ostream* os) { *os << fault.case_line; }

const Fault kFaults[] = {
    {"LogitsAtTheEndOfTheirAllocation", "q=1 kv=40 b=8 hq=8 hkv=2 d=64 page=16 extent=512 bias=logits dtype=bf16 poison=1"},
    {"MoreSplitsThanKeyTiles", "q=1,3 kv=90,200 hq=8 hkv=1 d=64 page=16 extent=64 bias=logits dtype=bf16 splits=128 poison=1"},
    {"PagesBeforeTheWindow", "q=1 kv=131072 hq=16 hkv=4 d=64 page=16 window=511 extent=512 bias=fused dtype=bf16 poison=1"},
    {"PagesBeforeThePrefillsWindow",
     "q=70 kv=5000 hq=4 hkv=1 d=64 page=16 window=511 extent=512 bias=logits dtype=bf16 poison=1"},
    {"SplitsWithoutAVisibleKey",
     "q=1 kv=3000 hq=4 hkv=1 d=64 page=16 window=20 extent=64 bias=fused dtype=bf16 splits=32 poison=1"},
    {"ChunkOnACachedPrefix", "q=128 kv=1408 hq=4 hkv=1 d=64 page=64 extent=1024 bias=fused dtype=bf16 poison=1"},
    {"TailOfTheLastPage", "q=4 kv=13 hq=4 hkv=2 d=64 page=4 bias=none dtype=bf16 poison=1"},
    {"CacheLongerThanTheSequences", "q=1 kv=32,64,96,48 hq=4 hkv=2 d=128 page=128 bias=none dtype=fp16 poison=1"},
    {"TailOfAHugePage", "q=3 kv=65 hq=4 hkv=1 d=128 page=256 extent=64 bias=logits dtype=bf16 poison=1"},
    {"TableOfGarbage", "q=5,1 kv=100,1 hq=4 hkv=2 d=64 page=16 bias=none dtype=bf16 table_pad=40 poison=1"},
    {"NoKeys", "q=3,1,2 kv=0,0,0 hq=4 hkv=2 d=64 page=16 extent=64 bias=logits dtype=bf16 poison=1"},
    {"NoTokens", "q=0,0 kv=50,60 hq=4 hkv=2 d=64 page=16 extent=64 bias=fused dtype=bf16 poison=1"},
    {"NoSequences", "b=0 hq=4 hkv=2 d=64 page=16 extent=64 bias=fused dtype=bf16 poison=1"},
    {"NoSequencesButTokens", "b=0 spare_tokens=4 hq=4 hkv=2 d=64 page=16 bias=none dtype=bf16 poison=1"},
    {"NoQueriesInTheMiddle", "q=5,0,7 kv=50,33,70 hq=4 hkv=2 d=64 page=16 extent=64 bias=fused dtype=bf16 poison=1"},
    {"NoKeysInTheMiddle", "q=5,4,7 kv=50,0,70 hq=4 hkv=2 d=64 page=16 extent=64 bias=logits dtype=bf16 splits=3 poison=1"},
    {"GraphPadding",
     "q=1,1,0,0,1 kv=70,9,0,0,0 spare_tokens=11 hq=8 hkv=1 d=128 page=16 extent=64 bias=fused dtype=bf16 poison=1"},
    {"MoreQueriesThanKeys", "q=90 kv=20 hq=4 hkv=1 d=64 page=16 extent=64 bias=logits dtype=bf16 poison=1"},
    {"PackedRowsPaddedPages",
     "q=9 kv=90 hq=4 hkv=2 d=64 page=16 layout=NHD kv_pad=32 extent=64 bias=logits dtype=bf16 poison=1"},
    {"PackedHeadsPaddedPages",
     "q=9 kv=90 hq=4 hkv=1 d=64 page=16 layout=HND kv_pad=32 extent=64 bias=fused dtype=bf16 poison=1"},
    {"StridedQAndOut",
     "q=9,3 kv=90,4 hq=4 hkv=2 d=64 page=16 q_pad=8 out_pad=72 lse=head spare_tokens=2 bias=none dtype=bf16 poison=1"},
    {"FusedRowsPastThePrefix",
     "q=9 kv=90 hq=4 hkv=2 d=64 page=16 spare_tokens=9 rel_scale=1 extent=64 bias=fused dtype=bf16 poison=1"},
    {"BoundsAboveTheLengths",
     "q=1,9 kv=70,30 max_q=500 max_kv=4000 table_pad=300 spare_tokens=600 hq=4 hkv=1 d=64 page=16 extent=64 "
     "bias=fused dtype=bf16 poison=1"},
    {"SmallModel", "q=20 kv=50 hq=8 hkv=2 d=32 page=16 window=31 extent=64 d_rel=8 bias=fused dtype=bf16 poison=1"},
};

class PoisonedCase : public testing::TestWithParam<Fault> {};

std::string fault_name(const testing::TestParamInfo<Fault>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(Faults, PoisonedCase, testing::ValuesIn(kFaults), fault_name);

TEST_P(PoisonedCase, IsRightAndTouchesNothingElse) { expect_right(GetParam().case_line, 600); }

class PageSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, PageSize, testing::Values(1, 8, 13, 16, 32, 64, 100, 128, 256));

TEST_P(PageSize, IsServedAndPoisonProof) {
  expect_right("q=6,1 kv=270,257 hq=4 hkv=2 d=64 extent=64 bias=logits dtype=bf16 poison=1 page=" + std::to_string(GetParam()));
}

// Rows without a visible key are exact zeros, and their lse is -inf, whatever was in out before.
TEST(Poison, RowsThatSeeNothingAreZeros) {
  HostProblem host = make("q=30,2 kv=10,0 hq=4 hkv=2 d=64 page=16 extent=64 bias=logits dtype=bf16 splits=4 poison=1");
  for_each_result(host, [&](const Runner& runner, const check::RunResult& result) {
    for (std::int64_t token = 0; token < 32; ++token)
      for (std::int64_t head = 0; head < 4; ++head) {
        const bool sees = token >= 20 && token < 30;
        const float lse = result.lse[static_cast<std::size_t>(token * 4 + head)];
        ASSERT_EQ(std::isinf(lse) && lse < 0, !sees) << runner.name << " token " << token;
        for (int d = 0; !sees && d < 64; ++d)
          ASSERT_EQ(row_of(result, host, token, head)[d], 0.0f) << runner.name << " token " << token;
      }
  });
}

// The rows of all sequences but one.
check::Reference without_sequence(const check::Reference& all, int seq) {
  check::Reference kept = all;
  kept.rows.clear(), kept.out.clear(), kept.lse.clear();
  kept.out_allowance.clear(), kept.column_allowance.clear(), kept.lse_allowance.clear();
  for (std::size_t i = 0; i < all.rows.size(); ++i) {
    if (all.rows[i].seq == seq) continue;
    const double* out = &all.out[i * static_cast<std::size_t>(all.head_dim)];
    kept.rows.push_back(all.rows[i]);
    kept.out.insert(kept.out.end(), out, out + all.head_dim);
    kept.lse.push_back(all.lse[i]);
    kept.out_allowance.push_back(all.out_allowance[i]);
    kept.column_allowance.push_back(all.column_allowance[i]);
    kept.lse_allowance.push_back(all.lse_allowance[i]);
  }
  return kept;
}

// The pages of one sequence are wild: nothing outside the caches is read, and everybody else's rows are right.
TEST(Poison, WildPagesHurtOnlyTheirSequence) {
  using Int = std::numeric_limits<std::int32_t>;
  for (const char* line : {"q=3,5,2 kv=90,120,40 hq=4 hkv=2 d=64 page=16 extent=64 bias=logits dtype=bf16 poison=1",
                           "q=1,1,1 kv=90,120,40 hq=4 hkv=2 d=64 page=13 extent=64 bias=fused dtype=bf16 splits=3 poison=1"})
    for (const std::int32_t wild : {-1, Int::max(), Int::min(), 1 << 20}) {
      HostProblem host = make(line);
      check::Reference reference;
      ASSERT_TRUE(check::make_reference(host, 0, reference).ok());
      reference = without_sequence(reference, 1);
      auto* table = static_cast<std::int32_t*>(host.args.block_table.data) + host.args.block_table.stride[0];
      for (int entry = 0; entry < 3; ++entry) table[2 * entry] = wild;  // every second page of sequence 1
      for (Runner runner : runners_for(host)) {
        runner.options.validate = false;
        const check::RunResult result = run(runner, host);
        if (!refused(runner, result)) expect_verdict(runner, host, reference, result);
      }
    }
}

// kv_len larger than the table can hold: an error with validation and on the host, never a wild read.
TEST(Poison, KvLenPastTheTable) {
  HostProblem host = make("q=3,2 kv=90,40 hq=4 hkv=2 d=64 page=16 table_pad=0 bias=none dtype=bf16 poison=1");
  static_cast<std::int32_t*>(host.args.cache_seqlens.data)[1] = 100000;
  for (Runner runner : runners_for(host))
    for (const bool validate : {true, false}) {
      runner.options.validate = validate;
      const check::RunResult result = run(runner, host);
      if (runner.options.memory == MemoryKind::kHost) {
        EXPECT_EQ(result.status.code, Code::kInvalidArgument) << runner.name;
        EXPECT_NE(result.status.text.find("cache_seqlens"), std::string::npos) << result.status.text;
      } else {
        EXPECT_TRUE(result.status.ok() || refused(runner, result)) << runner.name << ": " << result.status.text;
      }
    }
}

// A tensor moved so that it ends (or begins) at a page of memory that may not be touched.
class GuardedCopy {
 public:
  GuardedCopy(flashrel_tensor& view, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::int64_t last = 0;
    for (int dim = 0; dim < view.rank; ++dim) last += (view.shape[dim] - 1) * view.stride[dim];
    const std::size_t bytes = static_cast<std::size_t>(last + 1) * size_of(static_cast<DType>(view.dtype));
    const std::size_t room = (bytes + page - 1) / page * page;
    bytes_ = room + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page, room, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::byte* data = at_end ? base_ + page + room - bytes : base_ + page;
    std::memcpy(data, view.data, bytes);
    view.data = data;
  }
  GuardedCopy(const GuardedCopy&) = delete;
  GuardedCopy& operator=(const GuardedCopy&) = delete;
  ~GuardedCopy() { munmap(base_, bytes_); }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// On the host a read one element before or past an input kills the test; on the GPU the memory checker does this job.
TEST(Poison, NoReadOutsideAnyInput) {
  for (const char* line :
       {"q=1 kv=40 b=8 hq=8 hkv=2 d=64 page=16 extent=512 bias=logits dtype=bf16",
        "q=17,1 kv=33,7 hq=3 hkv=1 d=40 page=5 extent=3 bias=logits dtype=bf16 rel_dtype=fp32 q_pad=1",
        "q=33,1 kv=129,300 hq=8 hkv=2 d=128 page=16 extent=100 d_rel=5 bias=fused dtype=bf16 rel_scale=1 splits=3",
        "q=9 kv=70 hq=4 hkv=2 d=65 page=16 causal=0 extent=20 rel_zero=9 edge=clamp bias=fused dtype=fp16",
        "q=9 kv=70 hq=4 hkv=2 d=33 page=16 layout=HND window=13 extent=20 bias=logits dtype=fp32"})
    for (const bool at_end : {true, false}) {
      HostProblem host = make(std::string(line) + " table_pad=0 spare_pages=0");
      std::vector<std::unique_ptr<GuardedCopy>> guards;
      for (const check::NamedTensor& input : check::input_tensors())
        if (flashrel_tensor& view = host.args.*input.field; view.rank > 0)
          guards.push_back(std::make_unique<GuardedCopy>(view, at_end));
      check::Reference reference;
      ASSERT_TRUE(check::make_reference(host, 0, reference).ok());
      for (const Runner& runner : runners_for(host))
        if (runner.options.memory == MemoryKind::kHost) expect_verdict(runner, host, reference, run(runner, host));
    }
}

}  // namespace
}  // namespace flashrel::test
