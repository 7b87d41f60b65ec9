// Every way a problem can run in this build and on this machine, and the one loop that runs a problem in all of them and
// judges each result. A backend that is missing here, and a call that a GPU backend refuses, are counted and printed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check/case_line.hpp"
#include "check/generate.hpp"
#include "check/host_problem.hpp"
#include "check/judge.hpp"
#include "check/run_host.hpp"

namespace flashrel::test {

struct Runner {
  std::string name;           // "cpu/avx2", "mma/sheared"
  check::RunOptions options;  // memory, backend, route
  std::string cpu_isa;        // of the CPU backend
};

// The CPU backend under every instruction set; each GPU backend when a GPU is present, by every route of the bias mode.
std::vector<Runner> runners_for(const check::HostProblem& host);

// The problem of a case line.
check::HostProblem make(const std::string& case_line, std::uint64_t seed = 1);

// One run; counted as refused when a GPU backend answers "unsupported" (the CPU backend must serve everything).
check::RunResult run(const Runner& runner, check::HostProblem& host);
bool refused(const Runner& runner, const check::RunResult& result);

// Calls look(runner, result) for every run that was served. A run that failed is a test failure.
void for_each_result(check::HostProblem& host, const std::function<void(const Runner&, const check::RunResult&)>& look);

// Every row (or max_rows of them) of every runner's result is right; nothing else was written.
void expect_right(check::HostProblem& host, std::int64_t max_rows = 0);
void expect_right(const std::string& case_line, std::int64_t max_rows = 0);

// What the judge says about one result, as a test failure.
void expect_verdict(const Runner& runner, const check::HostProblem& host, const check::Reference& reference,
                    const check::RunResult& result);

// A place to look: the elements of one row of out.
const float* row_of(const check::RunResult& result, const check::HostProblem& host, std::int64_t token, std::int64_t head);

// Same bits, NaN of untouched rows included.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace flashrel::test
