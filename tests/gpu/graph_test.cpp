// A captured call follows what its memory holds: replay after lengths, tables and data changed in place equals a fresh call.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "backend/backend.hpp"
#include "check/generate.hpp"
#include "check/judge.hpp"
#include "check/run_host.hpp"

namespace flashrel {
namespace {

using check::HostProblem;

struct Step {
  const char *captured, *replayed;  // case lines of the same shapes, pages and bounds
};

check::Case parse(const char* line) {
  check::Case c;
  const Status status = check::parse_case(line, c);
  EXPECT_TRUE(status.ok()) << status.text;
  return c;
}

// Every input buffer's bytes; shapes and sizes agree because the bounds and the token count do.
void overwrite_inputs(HostProblem& to, const HostProblem& from) {
  ASSERT_EQ(to.inputs.size(), from.inputs.size());
  for (std::size_t i = 0; i < to.inputs.size(); ++i) {
    ASSERT_EQ(to.inputs[i].bytes(), from.inputs[i].bytes());
    std::memcpy(to.inputs[i].data(), from.inputs[i].data(), from.inputs[i].bytes());
  }
}

void expect_replay_follows(const Step& step, const std::string& backend, const std::string& route, bool shared_schedule) {
  HostProblem host = check::generate(parse(step.captured), 1);
  check::RunOptions options{
      .memory = MemoryKind::kCuda, .backend = backend, .route = route, .shared_schedule = shared_schedule};
  check::Placement placement;
  Status status = check::Placement::create(host, options, placement);
  if (status.code == Code::kUnsupported) return;
  ASSERT_TRUE(status.ok()) << status.text;
  ASSERT_TRUE(placement.poison().ok());
  ASSERT_TRUE(placement.launch().ok());  // loads the code
  ASSERT_TRUE(check::synchronize(MemoryKind::kCuda).ok());

  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  if (shared_schedule) status = placement.schedule(stream);
  // Two layers of one step: the second must find the schedule as the first did.
  for (int layer = 0; layer < 2 && status.ok(); ++layer) status = placement.launch(stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(status.ok()) << status.text;
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);

  for (const char* line : {step.captured, step.replayed, step.captured}) {
    HostProblem next = check::generate(parse(line), 2);
    ASSERT_NO_FATAL_FAILURE(overwrite_inputs(host, next));
    ASSERT_TRUE(placement.copy_inputs().ok());
    ASSERT_TRUE(placement.poison().ok());
    ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
    const check::RunResult replayed = placement.collect();
    check::Reference reference;
    ASSERT_TRUE(check::make_reference(next, 0, reference).ok());
    const check::Verdict verdict = check::judge(next, reference, replayed);
    EXPECT_TRUE(verdict.passed) << backend << " " << route << ": " << verdict.text;
    const check::RunResult fresh = check::run_host(next, options);
    ASSERT_EQ(replayed.out.size(), fresh.out.size());
    EXPECT_EQ(std::memcmp(replayed.out.data(), fresh.out.data(), fresh.out.size() * sizeof(float)), 0)
        << backend << " " << route << ": replay and fresh call differ: " << line;
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(GpuGraph, ReplayFollowsLengthsTablesAndData) {
  check::Block probe;
  if (!check::Block::allocate(MemoryKind::kCuda, 16, probe).ok()) GTEST_SKIP() << "no CUDA device";
  // The largest kv_len stays, so that tables and caches keep their sizes; which sequence has it changes.
  constexpr Step kSteps[] = {
      {"q=1,1,1 kv=900,5,300 hq=8 hkv=1 page=16 extent=128 bias=fused",
       "q=1,1,1 kv=300,900,5 hq=8 hkv=1 page=16 extent=128 bias=fused"},
      {"q=70,3,7 kv=400,90,7 hq=8 hkv=2 page=16 extent=64 bias=fused max_q=70",
       "q=3,7,70 kv=90,7,400 hq=8 hkv=2 page=16 extent=64 bias=fused max_q=70"},
      {"q=70,3,7 kv=600,90,7 hq=8 hkv=1 page=16 extent=64 bias=fused max_q=70",
       "q=3,7,70 kv=90,7,600 hq=8 hkv=1 page=16 extent=64 bias=fused max_q=70"},
      {"q=1,0,2 kv=640,0,20 hq=8 hkv=1 page=64 extent=64 bias=logits max_q=2",
       "q=2,1,0 kv=20,640,0 hq=8 hkv=1 page=64 extent=64 bias=logits max_q=2"},
      {"q=33,40 kv=200,64 hq=4 hkv=4 page=16 bias=none max_q=40", "q=40,33 kv=64,200 hq=4 hkv=4 page=16 bias=none max_q=40"},
  };
  for (const Backend* backend : backends_for(MemoryKind::kCuda))
    for (const Step& step : kSteps) {
      const bool logits = std::strstr(step.captured, "bias=logits") != nullptr;
      for (const char* route : logits ? std::vector<const char*>{"score_mod", "sheared"} : std::vector<const char*>{"auto"})
        for (const bool shared_schedule : {false, true})
          ASSERT_NO_FATAL_FAILURE(expect_replay_follows(step, std::string(backend->name), route, shared_schedule));
    }
}

}  // namespace
}  // namespace flashrel
