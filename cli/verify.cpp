#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "check/generate.hpp"
#include "check/judge.hpp"
#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/text.hpp"

namespace flashrel::cli {
namespace {

struct Tally {
  int passed = 0, failed = 0;
  double worst = 0;
};

struct Totals {
  std::map<std::string, Tally> by_target;
  std::map<std::pair<std::string, std::string>, int> skips;  // (target, reason) -> cases
};

void verify_case(const check::CaseLine& line, const VerifyOptions& options, Progress& progress, Totals& totals) {
  check::HostProblem host = check::generate(line.parsed, options.seed);
  check::Reference reference;
  const Targets targets = find_targets(host, options.choice);
  for (const Skip& skip : targets.skipped) ++totals.skips[{skip.name, skip.reason}];
  if (targets.runnable.empty()) return;
  const Status status = check::make_reference(host, options.max_rows, reference);
  for (const Target& target : targets.runnable) {
    Tally& tally = totals.by_target[target.name];
    const check::Verdict verdict = status.ok() ? check::judge(host, reference, check::run_host(host, target.options))
                                               : check::Verdict{.text = status.text};
    (verdict.passed ? tally.passed : tally.failed)++;
    tally.worst = std::max(tally.worst, verdict.worst);
    if (verdict.passed) continue;
    progress.clear();
    fmt::print("WRONG {}\n{}\n", target.name, verdict.text);
  }
}

}  // namespace

int verify(const VerifyOptions& options) {
  std::vector<check::CaseLine> cases;
  for (const std::string& file : options.files)
    if (Status status = read_cases(file, cases); !status.ok()) return fail(status);
  Totals totals;
  {
    Progress progress(cases.size());
    for (const check::CaseLine& line : cases) {
      progress.step(line.text);
      verify_case(line, options, progress, totals);
    }
  }

  int passed = 0, failed = 0, skipped = 0;
  Table table({"target", "passed", "failed", "worst row, of what it may err"});
  for (const auto& [name, tally] : totals.by_target) {
    table.add({name, fmt::format("{}", tally.passed), fmt::format("{}", tally.failed), fmt::format("{:.2f}", tally.worst)});
    passed += tally.passed;
    failed += tally.failed;
  }
  fmt::print("{} cases, seed {}\n{}", cases.size(), options.seed, table.text());
  for (const auto& [what, count] : totals.skips) {
    fmt::print("skipped {} x {}: {}\n", count, what.first, what.second);
    skipped += count;
  }
  fmt::print("{} passed, {} failed, {} skipped\n", passed, failed, skipped);
  if (failed > 0) return kWrong;
  return passed > 0 ? kFine : fail(invalid("verify: no case ran on any backend"));
}

}  // namespace flashrel::cli
