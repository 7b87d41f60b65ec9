#include <fmt/format.h>

#include "check/generate.hpp"
#include "check/judge.hpp"
#include "check/problem_file.hpp"
#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/text.hpp"

namespace flashrel::cli {
namespace {

struct Count {
  int passed = 0, failed = 0, skipped = 0;
  Status refusal;  // the first, for when nothing ran
};

Status check_one(const std::string& title, check::HostProblem& host, const Choice& choice, Count& count) {
  check::Reference reference;
  FLASHREL_RETURN_IF_ERROR(check::make_reference(host, 0, reference));
  fmt::print("{}: {} rows against {}\n", title, reference.rows.size(),
             host.expected_out.empty() ? "the float64 definition" : "the file's own result");
  const Targets targets = find_targets(host, choice);
  for (const Target& target : targets.runnable) {
    const check::Verdict verdict = check::judge(host, reference, check::run_host(host, target.options));
    (verdict.passed ? count.passed : count.failed)++;
    if (verdict.passed)
      fmt::print("  ok    {:<24} worst row at {:.2f} of what it may err\n", target.name, verdict.worst);
    else
      fmt::print("  WRONG {:<24} {}\n", target.name, verdict.text);
  }
  for (const Skip& skip : targets.skipped) fmt::print("  skip  {:<24} {}\n", skip.name, skip.reason);
  count.skipped += static_cast<int>(targets.skipped.size());
  if (targets.runnable.empty() && count.refusal.ok())
    count.refusal = targets.skipped.empty() ? invalid("--backend: got '" + choice.backend + "', which this build does not have")
                                            : unsupported(targets.skipped[0].name + ": " + targets.skipped[0].reason);
  return {};
}

}  // namespace

int check_command(const CheckOptions& options) {
  Count count;
  std::vector<std::vector<std::string>> sources;
  for (const std::string& path : options.problems) sources.push_back({path});
  if (!options.case_words.empty()) sources.push_back(options.case_words);
  if (sources.empty()) return fail(invalid("check: got nothing, expected problem files or --case LINE"));
  for (const auto& source : sources) {
    check::HostProblem host;
    Status status = load_problem(source, options.seed, host);
    if (status.ok()) status = check_one(is_problem_file(source) ? source[0] : host.label, host, options.choice, count);
    if (!status.ok()) return fail(status);
  }
  fmt::print("{} passed, {} failed, {} skipped\n", count.passed, count.failed, count.skipped);
  if (count.failed > 0) return kWrong;
  return count.passed > 0 ? kFine : fail(count.refusal);
}

}  // namespace flashrel::cli
