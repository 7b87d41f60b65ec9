// Routing is visible: every refusal has a reason, a forced backend or route is taken or is an error.
#include "plan/route.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "plan/make_plan.hpp"

namespace flashrel {
namespace {

Problem plain_problem(MemoryKind memory) {
  Problem p;
  p.memory = memory;
  p.n_seqs = 1, p.n_tokens = 16, p.n_q_heads = 8, p.n_kv_heads = 1, p.head_dim = 128, p.page_size = 64;
  p.max_pages = p.n_pages = 4, p.max_seqlen_q = 16, p.max_seqlen_k = 256;
  p.softmax_scale = 1.0 / 128;
  p.visible = visible_distances(true, -1, -1);
  Strides& s = p.strides;
  s.q_head = s.out_head = 128, s.q_token = s.out_token = 8 * 128;
  s.k_head = s.v_head = 128, s.k_slot = s.v_slot = 128, s.k_page = s.v_page = 64 * 128;
  s.table_seq = 4;
  return p;
}

Problem with_bias(Problem p, BiasMode mode) {
  p.bias = mode;
  p.rel_extent = 64, p.d_rel = 16;
  p.band = band_distances(0, 64, RelEdge::kZero);
  p.strides.rel_logits_head = 64, p.strides.rel_logits_token = 8 * 64;
  p.strides.rel_head = 16, p.strides.rel_token = 8 * 16, p.strides.rel_proj_row = 64;
  return p;
}

Device device_of(MemoryKind memory, int major = 9, int minor = 0) {
  Device d;
  d.memory = memory;
  d.capability_major = major, d.capability_minor = minor;
  d.n_sms = 132, d.max_smem_bytes = 227 * 1024, d.n_threads = 4;
  return d;
}

Status choose(const Problem& problem, const Device& device, const Options& options, Plan& plan) {
  plan = Plan{};
  return choose_backend(problem, device, options, plan);
}

TEST(Route, AutoTakesTheFirstThatServesAndRecordsTheRest) {
  Plan plan;
  ASSERT_TRUE(choose(plain_problem(MemoryKind::kHost), device_of(MemoryKind::kHost), {}, plan).ok());
  ASSERT_FALSE(plan.considered.empty());
  EXPECT_EQ(plan.backend->name, plan.considered.back().backend);
  EXPECT_EQ(plan.considered.back().reason, "");
  for (std::size_t i = 0; i + 1 < plan.considered.size(); ++i) EXPECT_NE(plan.considered[i].reason, "");
}

TEST(Route, AnUnknownBackendIsRefusedWithTheNamesThatExist) {
  for (MemoryKind memory : {MemoryKind::kHost, MemoryKind::kCuda}) {
    Plan plan;
    const Status status = choose(plain_problem(memory), device_of(memory), {.backend = "nonsense"}, plan);
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.text.find("'nonsense'"), std::string::npos) << status.text;
    for (const Backend* backend : backends_for(memory))
      EXPECT_NE(status.text.find(backend->name), std::string::npos) << status.text;
    EXPECT_EQ(plan.backend, nullptr);
  }
}

TEST(Route, ABackendOfTheOtherMemoryIsNotTaken) {
  Plan plan;
  EXPECT_EQ(choose(plain_problem(MemoryKind::kCuda), device_of(MemoryKind::kCuda), {.backend = "cpu"}, plan).code,
            Code::kInvalidArgument);
  for (const Backend* backend : backends_for(MemoryKind::kCuda))
    EXPECT_EQ(
        choose(plain_problem(MemoryKind::kHost), device_of(MemoryKind::kHost), {.backend = std::string(backend->name)}, plan)
            .code,
        Code::kInvalidArgument);
}

TEST(Route, AForcedBackendServesOrSaysWhyNot) {
  Problem odd = plain_problem(MemoryKind::kHost);
  odd.head_dim = 513;
  Plan plan;
  Status status = choose(odd, device_of(MemoryKind::kHost), {.backend = "cpu"}, plan);
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.text.find("head_dim: got 513"), std::string::npos) << status.text;
  EXPECT_EQ(plan.backend, nullptr);
  status = choose(odd, device_of(MemoryKind::kHost), {}, plan);
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.text.find("cpu: head_dim: got 513"), std::string::npos) << status.text;

  for (const Backend* backend : backends_for(MemoryKind::kCuda)) {
    odd = plain_problem(MemoryKind::kCuda);
    odd.head_dim = 72;
    status = choose(odd, device_of(MemoryKind::kCuda), {.backend = std::string(backend->name)}, plan);
    EXPECT_EQ(status.code, Code::kUnsupported) << backend->name;
    EXPECT_NE(status.text.find("head_dim"), std::string::npos) << status.text;
  }
}

// Exact capabilities for the tuned backends, everything from 8.0 up for mma.
TEST(Route, BackendsMatchTheirCapabilities) {
  for (const Backend* backend : backends_for(MemoryKind::kCuda))
    for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}}) {
      Plan plan;
      const Status status = choose(plain_problem(MemoryKind::kCuda), device_of(MemoryKind::kCuda, major, minor),
                                   {.backend = std::string(backend->name)}, plan);
      const bool expected = backend->name == "mma"                 ? major >= 8
                            : backend->name.substr(0, 4) == "sm90" ? major == 9
                                                                   : major == 10;
      EXPECT_EQ(status.ok(), expected) << backend->name << " on " << major << "." << minor << ": " << status.text;
    }
}

// A route that does not fit the bias mode is an error; one that fits is what the plan says, or is refused.
TEST(Route, AForcedRouteIsNeverMoved) {
  for (MemoryKind memory : {MemoryKind::kHost, MemoryKind::kCuda})
    for (const Backend* backend : backends_for(memory))
      for (BiasMode mode : {BiasMode::kNone, BiasMode::kLogits, BiasMode::kFused})
        for (const std::string route : {"score_mod", "sheared", "fused", "nonsense", "auto"}) {
          const Problem problem = with_bias(plain_problem(memory), mode);
          Plan plan;
          const Status status =
              make_plan(problem, device_of(memory), {.backend = std::string(backend->name), .route = route}, plan);
          const bool fits = route == "auto" || (mode == BiasMode::kFused && route == "fused") ||
                            (mode == BiasMode::kLogits && (route == "score_mod" || route == "sheared"));
          const std::string what = std::string(backend->name) + " " + name_of(mode) + " route " + route + ": " + status.text;
          if (!fits) {
            EXPECT_EQ(status.code, Code::kInvalidArgument) << what;
            EXPECT_NE(status.text.find("route: got"), std::string::npos) << what;
          } else if (!status.ok()) {
            EXPECT_EQ(status.code, Code::kUnsupported) << what;
            // The route, or the whole mode that a backend does not have.
            EXPECT_TRUE(status.text.find("route") != std::string::npos || status.text.find("rel_logits") != std::string::npos)
                << what;
          } else if (route != "auto") {
            EXPECT_EQ(name_of(plan.policy.route), route) << what;
          } else {
            EXPECT_EQ(plan.policy.route == Route::kNone, mode == BiasMode::kNone) << what;
          }
        }
}

}  // namespace
}  // namespace flashrel
