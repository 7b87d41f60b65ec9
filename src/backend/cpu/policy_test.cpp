#include "backend/cpu/policy.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "api/run.hpp"
#include "api/validate.hpp"
#include "backend/cpu/cpu.hpp"
#include "check/generate.hpp"
#include "plan/make_plan.hpp"

namespace flashrel {
namespace {

std::vector<float> run_with(const check::Case& c, const Policy& policy) {
  check::HostProblem host = check::generate(c, 5);
  Call call;
  EXPECT_TRUE(validate(host.args, call).ok());
  Device device;
  Plan plan;
  EXPECT_TRUE(make_plan(call.problem, device, call.options, plan).ok());
  plan.policy = policy;
  complete_plan(call.problem, call.options, plan);
  const check::Buffer workspace(workspace_bytes(plan, false) + Workspace::kAlignment);
  const auto over = reinterpret_cast<std::uintptr_t>(workspace.data()) % Workspace::kAlignment;
  void* base = workspace.data() + (over == 0 ? 0 : Workspace::kAlignment - over);
  EXPECT_TRUE(run_plan(call.problem, call.tensors, plan, place_memory(plan, base, nullptr), nullptr).ok());
  std::vector<float> out;
  for (std::int64_t i = 0; i < check::count_of(host.args.out); ++i)
    out.push_back(load_float(host.args.out.data, call.problem.dtype, i));
  return out;
}

TEST(CpuPolicy, EveryRowGivesTheSameResult) {
  check::Case c;
  ASSERT_TRUE(check::parse_case("q=70,1,9 kv=900,3000,40 hq=8 d=64 extent=300 bias=fused dtype=fp32", c).ok());
  const std::vector<float> expected = run_with(c, cpu::kPolicies[0]);
  for (const Policy& row : cpu::kPolicies)
    for (int target_parts : {0, 20}) {
      Policy policy = row;
      policy.target_parts = target_parts;
      policy.n_workers = 3;
      const std::vector<float> got = run_with(c, policy);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 1e-5 + 1e-5 * std::fabs(expected[i])) << row.name << " element " << i;
    }
}

}  // namespace
}  // namespace flashrel
