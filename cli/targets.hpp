// The ways in which this machine can run a problem: backend x route, each either runnable or skipped for a reason.
#pragma once

#include <string>
#include <vector>

#include "check/host_problem.hpp"
#include "check/run_host.hpp"
#include "core/device.hpp"
#include "core/plan.hpp"

namespace flashrel::cli {

struct Target {
  check::RunOptions options;
  std::string name;  // "cpu (avx2)", "mma, sheared"
};

struct Skip {
  std::string name, reason;
};

struct Choice {
  std::string backend = "all", route = "all";  // or one by name, which also wakes a backend that is off
  std::int64_t num_splits = -1;                // -1 = as the problem says
};

struct Targets {
  std::vector<Target> runnable;
  std::vector<Skip> skipped;
};

Targets find_targets(const check::HostProblem& host, const Choice& choice);

// Runs this program again once for every usable CPU instruction set, with FLASHREL_CPU_ISA set and `--all-isas` left out of its
// arguments; the worst exit code.
int run_for_all_isas(int argc, char** argv);

}  // namespace flashrel::cli
