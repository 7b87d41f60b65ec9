#include <fmt/format.h>

#include "check/generate.hpp"
#include "check/problem_file.hpp"
#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/text.hpp"
#include "core/definition.hpp"

namespace flashrel::cli {

int make(const MakeOptions& options) {
  check::Case c;
  if (Status status = check::parse_case(join(options.words), c); !status.ok()) return fail(status);
  check::HostProblem host = check::generate(c, options.seed);
  Call call;
  if (Status status = check::describe(host, call); !status.ok()) return fail(status);
  if (options.expected) {
    const Truth truth = define(call.problem, call.tensors);
    host.expected_out.assign(truth.out.begin(), truth.out.end());
    host.expected_lse.assign(truth.lse.begin(), truth.lse.end());
  }
  if (Status status = check::write_problem(options.output, host); !status.ok()) return fail(status);
  fmt::print("{}: {}, seed {}\n", options.output, host.label, host.seed);
  return kFine;
}

}  // namespace flashrel::cli
