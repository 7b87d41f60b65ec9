// Decode whose sequences several CTAs share: merged in the launch itself, which must never wait for a CTA that has not started,
// and must give the same bits whoever merges.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "api/device.hpp"
#include "api/run.hpp"
#include "api/validate.hpp"
#include "backend/backend.hpp"
#include "check/generate.hpp"
#include "check/judge.hpp"
#include "check/run_host.hpp"
#include "plan/make_plan.hpp"

namespace flashrel {
namespace {

constexpr const char* kCases[] = {
    "q=1 kv=40000 hq=8 hkv=1 page=64 extent=1024 bias=fused",                        // one unit, a part in every CTA
    "q=9 kv=9000 hq=8 hkv=1 page=16 extent=512 bias=fused",                          // many rows
    "q=1 kv=9000,30,4000,1,700 hq=16 hkv=2 page=64 extent=256 bias=fused poison=1",  // parts and whole units side by side
    "q=2,1,3 kv=5000,6000,64 hq=64 hkv=8 page=128 bias=none",
};

// Under compute-sanitizer a launch takes a thousand times as long: with FLASHREL_QUICK_TESTS set, everything repeats less.
int repeats(int n) { return std::getenv("FLASHREL_QUICK_TESTS") == nullptr ? n : std::max(2, n / 300); }

check::HostProblem problem_of(const char* line) {
  check::Case c;
  const Status status = check::parse_case(line, c);
  EXPECT_TRUE(status.ok()) << status.text;
  return check::generate(c, 3);
}

bool same_bits(const check::RunResult& a, const check::RunResult& b) {
  const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  };
  return same(a.out, b.out) && same(a.lse, b.lse);
}

void expect_right(const check::HostProblem& host, const check::RunResult& result, const std::string& what) {
  check::Reference reference;
  ASSERT_TRUE(check::make_reference(host, 0, reference).ok());
  const check::Verdict verdict = check::judge(host, reference, result);
  EXPECT_TRUE(verdict.passed) << what << ": " << verdict.text;
}

class Sm90Decode : public testing::Test {
 protected:
  void SetUp() override {
    Device device;
    if (!cuda_device(-1, device).ok() || device.capability() != 90) GTEST_SKIP() << "no device of compute capability 9.0";
  }
  static check::RunOptions options() { return {.memory = MemoryKind::kCuda, .backend = "sm90"}; }
};

// One run by a plan whose policy is changed first.
struct ForcedRun {
  check::Placement placement;
  check::RunResult result;
};
template <class Change>
void run_forced(check::HostProblem& host, Change&& change, ForcedRun& run) {
  check::RunOptions options{.memory = MemoryKind::kCuda, .backend = "sm90"};
  ASSERT_TRUE(check::Placement::create(host, options, run.placement).ok());
  ASSERT_TRUE(run.placement.poison().ok());
  Call call;
  Device device;
  Plan plan;
  ASSERT_TRUE(validate(run.placement.args(), call).ok());
  ASSERT_TRUE(cuda_device(-1, device).ok());
  ASSERT_TRUE(make_plan(call.problem, device, call.options, plan).ok());
  ASSERT_TRUE(plan.policy.equal_shares) << "not a plan of the decode kernel";
  change(plan.policy);
  complete_plan(call.problem, call.options, plan);
  check::Block workspace;
  const std::size_t bytes = workspace_bytes(plan, false);
  ASSERT_TRUE(check::Block::allocate(MemoryKind::kCuda, bytes, workspace).ok());
  ASSERT_TRUE(check::fill_bytes(MemoryKind::kCuda, workspace.data(), 0xff, bytes).ok());
  const CallMemory memory = place_memory(plan, workspace.data(), nullptr);
  const Status status = run_plan(call.problem, call.tensors, plan, memory, nullptr);
  ASSERT_TRUE(status.ok()) << status.text;
  run.result = run.placement.collect();
}

TEST_F(Sm90Decode, WithoutPatienceWhoeverComesLastMergesAll) {
  for (const char* line : kCases) {
    check::HostProblem host = problem_of(line);
    ForcedRun patient, hasty;
    ASSERT_NO_FATAL_FAILURE(run_forced(host, [](Policy&) {}, patient));
    expect_right(host, patient.result, line);
    for (int i = 0; i < repeats(20); ++i) {
      ASSERT_NO_FATAL_FAILURE(run_forced(host, [](Policy& policy) { policy.patience_clocks = 0; }, hasty));
      ASSERT_TRUE(same_bits(patient.result, hasty.result)) << line;
    }
  }
}

// More CTAs than the device holds: those that have not started need the places of those that wait.
TEST_F(Sm90Decode, MoreCtasThanTheDeviceHolds) {
  for (const char* line : kCases)
    for (const int n_workers : {1, 7, 300, 512}) {
      check::HostProblem host = problem_of(line);
      ForcedRun run;
      ASSERT_NO_FATAL_FAILURE(
          run_forced(host, [&](Policy& policy) { policy.n_workers = n_workers, policy.patience_clocks = 20000; }, run));
      expect_right(host, run.result, std::string(line) + " workers " + std::to_string(n_workers));
    }
}

// Launches of several streams compete for the SMs, and all of them wait for parts of their own.
TEST_F(Sm90Decode, ThousandsOfLaunchesOnCompetingStreams) {
  const int n_rounds = repeats(1500);
  const std::size_t n = std::size(kCases);
  std::vector<check::HostProblem> hosts;
  for (const char* line : kCases) hosts.push_back(problem_of(line));
  hosts.push_back(problem_of("q=300 kv=600 hq=16 hkv=2 page=64 extent=256 bias=fused"));               // prefill beside them
  hosts.push_back(problem_of("q=300,1,2 kv=600,9000,700 hq=16 hkv=2 page=64 extent=256 bias=fused"));  // both in one call
  std::vector<std::string> names(kCases, kCases + n);
  names.insert(names.end(), {"prefill", "mixed"});
  std::vector<check::Placement> placements(hosts.size());
  std::vector<check::RunResult> alone;
  std::vector<cudaStream_t> streams(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    check::RunOptions shared = options();
    shared.shared_schedule = i % 2 == 0;
    ASSERT_TRUE(check::Placement::create(hosts[i], shared, placements[i]).ok());
    ASSERT_TRUE(placements[i].poison().ok());
    ASSERT_TRUE(placements[i].launch().ok());
    alone.push_back(placements[i].collect());
    ASSERT_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    ASSERT_TRUE(placements[i].poison().ok());
  }
  ASSERT_TRUE(check::synchronize(MemoryKind::kCuda).ok());
  for (int round = 0; round < n_rounds; ++round)
    for (std::size_t i = 0; i < hosts.size(); ++i) ASSERT_TRUE(placements[i].launch(streams[i]).ok());
  ASSERT_TRUE(check::synchronize(MemoryKind::kCuda).ok());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const check::RunResult result = placements[i].collect();
    EXPECT_TRUE(same_bits(alone[i], result)) << names[i];
    expect_right(hosts[i], result, names[i]);
    cudaStreamDestroy(streams[i]);
  }
}

// Back to back, each launch overlapping with the end of the one before it.
TEST_F(Sm90Decode, ChainsOfOverlappingLaunchesRepeatTheirBits) {
  for (const char* line : kCases)
    for (const bool shared_schedule : {false, true}) {
      check::HostProblem host = problem_of(line);
      check::RunOptions chained = options();
      chained.shared_schedule = shared_schedule;
      check::Placement placement;
      ASSERT_TRUE(check::Placement::create(host, chained, placement).ok());
      ASSERT_TRUE(placement.poison().ok());
      ASSERT_TRUE(placement.launch().ok());
      const check::RunResult first = placement.collect();
      expect_right(host, first, line);
      for (int chain = 0; chain < repeats(20); ++chain) {
        ASSERT_TRUE(placement.poison().ok());
        for (int i = 0; i < repeats(30); ++i) ASSERT_TRUE(placement.launch().ok());
        ASSERT_TRUE(same_bits(first, placement.collect())) << line;
      }
    }
}

}  // namespace
}  // namespace flashrel
