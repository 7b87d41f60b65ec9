// Times of one target on one problem, measured as users meet it: enough rounds for a median, caches cold.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "check/case_line.hpp"
#include "check/host_problem.hpp"
#include "check/run_host.hpp"
#include "cli/targets.hpp"

namespace flashrel::cli {

// One case's problems in host memory: copy i has seed i + 1. Grows on demand; addresses stay.
class CopiesOf {
 public:
  explicit CopiesOf(const check::Case& c) : case_(c) {}
  check::HostProblem& at(std::size_t i);

 private:
  const check::Case& case_;
  std::deque<check::HostProblem> hosts_;
};

// The inputs of one target in as many copies as it takes that no call finds its own in a cache; calls take them in turn.
class Rotation {
 public:
  // `bytes_a_call`: what one call reads and writes.
  static Status create(CopiesOf& copies, double bytes_a_call, const Target& target, Rotation& rotation);
  Rotation() = default;
  Rotation(Rotation&& other) noexcept { *this = std::move(other); }
  Rotation& operator=(Rotation&& other) noexcept;
  ~Rotation();

  // Appends one time of a call in microseconds: the next copy's on the host, the mean of a graph of all copies on a GPU.
  Status round(std::vector<double>& us);

  std::size_t n_copies() const { return placements_.size(); }
  check::Placement& first() { return placements_.front(); }

 private:
  Status capture();

  std::vector<check::Placement> placements_;
  std::size_t next_ = 0;
  bool on_gpu_ = false;
  void *graph_ = nullptr, *stream_ = nullptr, *begin_ = nullptr, *end_ = nullptr;  // CUDA handles
};

// Median, and the 10th and 90th percentile.
struct Spread {
  double median = 0, low = 0, high = 0;
  std::size_t n = 0;
};
Spread spread_of(std::vector<double> us);

}  // namespace flashrel::cli
