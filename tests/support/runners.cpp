#include "support/runners.hpp"

#include <cstdio>
#include <cstring>
#include <map>

#include "api/device.hpp"
#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"

namespace flashrel::test {
namespace {

using check::HostProblem;
using check::RunResult;

// What this process ran, refused and could not run; printed at its end.
struct Tally {
  long n_runs = 0;
  std::map<std::string, long> refusals;       // by sentence
  std::map<std::string, std::string> absent;  // runner -> reason
};

Tally& tally() {
  static Tally t;
  return t;
}

class PrintTally : public testing::Environment {
 public:
  void TearDown() override {
    long n_refused = 0;
    for (const auto& [sentence, n] : tally().refusals) n_refused += n;
    std::printf("%ld runs, %ld refused, %zu runners absent\n", tally().n_runs, n_refused, tally().absent.size());
    for (const auto& [sentence, n] : tally().refusals) std::printf("  refused %ld x %s\n", n, sentence.c_str());
    for (const auto& [name, reason] : tally().absent) std::printf("  absent %s: %s\n", name.c_str(), reason.c_str());
  }
};
const testing::Environment* const kPrintTally = testing::AddGlobalTestEnvironment(new PrintTally);

BiasMode bias_of(const HostProblem& host) {
  return host.args.rel_logits.rank > 0 ? BiasMode::kLogits : host.args.rel.rank > 0 ? BiasMode::kFused : BiasMode::kNone;
}

bool gpu_present(std::string& reason) {
  static std::string why;
  static const bool present = !cuda_devices(why).empty();
  reason = why;
  return present;
}

}  // namespace

std::vector<Runner> runners_for(const HostProblem& host) {
  std::vector<Runner> runners;
  for (const cpu::IsaState& isa : cpu::isa_states()) {
    const std::string name = "cpu/" + isa.name;
    if (!isa.reason.empty())
      tally().absent[name] = isa.reason;
    else
      runners.push_back({name, {.memory = MemoryKind::kHost, .backend = "cpu"}, isa.name});
  }
  if (host.args.q.dtype == FLASHREL_FLOAT32) return runners;  // the contract has it in host memory only
  std::string reason;
  for (const Backend* backend : backends_for(MemoryKind::kCuda)) {
    const std::string name(backend->name);
    if (!gpu_present(reason)) {
      tally().absent[name] = reason;
      continue;
    }
    const bool logits = bias_of(host) == BiasMode::kLogits;
    for (const char* route : logits ? std::vector{"score_mod", "sheared"} : std::vector{"auto"})
      runners.push_back({name + "/" + route, {.memory = MemoryKind::kCuda, .backend = name, .route = route}, ""});
  }
  return runners;
}

HostProblem make(const std::string& case_line, std::uint64_t seed) {
  check::Case parsed;
  const Status status = check::parse_case(case_line, parsed);
  EXPECT_TRUE(status.ok()) << case_line << ": " << status.text;
  return check::generate(parsed, seed);
}

RunResult run(const Runner& runner, HostProblem& host) {
  const Status forced = cpu::force_isa(runner.cpu_isa);
  EXPECT_TRUE(forced.ok()) << forced.text;
  RunResult result = check::run_host(host, runner.options);
  const Status released = cpu::force_isa("");
  EXPECT_TRUE(released.ok()) << released.text;
  ++tally().n_runs;
  if (refused(runner, result)) ++tally().refusals[runner.name + ": " + result.status.text];
  return result;
}

bool refused(const Runner& runner, const RunResult& result) {
  return runner.options.memory == MemoryKind::kCuda && result.status.code == Code::kUnsupported;
}

void for_each_result(HostProblem& host, const std::function<void(const Runner&, const RunResult&)>& look) {
  for (const Runner& runner : runners_for(host)) {
    const RunResult result = run(runner, host);
    if (refused(runner, result)) continue;
    if (!result.status.ok() || !result.damage.empty())
      ADD_FAILURE() << runner.name << ", case: " << host.label << "\n" << result.status.text << result.damage;
    else
      look(runner, result);
  }
}

void expect_verdict(const Runner& runner, const HostProblem& host, const check::Reference& reference, const RunResult& result) {
  const check::Verdict verdict = check::judge(host, reference, result);
  EXPECT_TRUE(verdict.passed) << runner.name << "\n" << verdict.text;
}

void expect_right(HostProblem& host, std::int64_t max_rows) {
  check::Reference reference;
  const Status status = check::make_reference(host, max_rows, reference);
  ASSERT_TRUE(status.ok()) << host.label << ": " << status.text;
  for_each_result(host,
                  [&](const Runner& runner, const RunResult& result) { expect_verdict(runner, host, reference, result); });
}

void expect_right(const std::string& case_line, std::int64_t max_rows) {
  HostProblem host = make(case_line);
  expect_right(host, max_rows);
}

const float* row_of(const RunResult& result, const HostProblem& host, std::int64_t token, std::int64_t head) {
  const flashrel_tensor& out = host.args.out;
  return &result.out[static_cast<std::size_t>((token * out.shape[1] + head) * out.shape[2])];
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace flashrel::test
