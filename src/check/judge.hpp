// Promise 7: every row of a result is judged against the float64 definition. A row may err at most twice as much as the
// naive computation in the same precision does, plus a little; NaN never passes. No whole-tensor mean anywhere.
// A row's error is its root mean square over head_dim: two roundings of one row differ little in it, while the largest of
// its columns is a matter of luck. No single column may err more than kColumnFactor times the naive row's worst one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "check/host_problem.hpp"
#include "check/run_host.hpp"
#include "core/definition.hpp"

namespace flashrel::check {

inline constexpr double kNaiveFactor = 2;
inline constexpr double kColumnFactor = 4;
inline constexpr double kOutSlack = 1e-5;
inline constexpr double kLseSlack = 1e-4;

// Truth and allowance of the judged rows; computed once a problem, used for every backend. Memory grows with the rows.
struct Reference {
  int head_dim = 0, n_q_heads = 0;
  std::vector<RowPlace> rows;
  std::vector<double> out, lse;  // (rows, head_dim) and (rows)
  // What a row may err: root mean square, each column, lse.
  std::vector<double> out_allowance, column_allowance, lse_allowance;
  bool has_lse = true;  // false when a file gives out alone
};

// max_rows = 0: all rows; else that many, spread over the batch, first and last included (a spot check).
// The truth is the problem's own expected result when it has one.
Status make_reference(const HostProblem& host, std::int64_t max_rows, Reference& reference);

struct Verdict {
  bool passed = false;
  std::int64_t n_rows = 0, n_wrong = 0;
  double worst = 0;  // largest error of a row as a part of its allowance: 1 = just allowed
  std::string text;  // when wrong: case line, seed, row, head, first bad column, both values
};

Verdict judge(const HostProblem& host, const Reference& reference, const RunResult& result);

}  // namespace flashrel::check
