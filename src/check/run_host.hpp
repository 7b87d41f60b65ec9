// Runs a HostProblem through the C ABI in host or CUDA memory. Before each run out, lse and the workspace are full of NaN;
// after it every byte that the contract leaves alone must still be as it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "check/host_problem.hpp"
#include "check/memory.hpp"

namespace flashrel::check {

struct RunOptions {
  MemoryKind memory = MemoryKind::kHost;
  std::string backend = "auto", route = "auto";
  std::int64_t num_splits = -1;  // -1 = as the problem says
  bool deterministic = false;    // or as the problem says
  bool validate = true;          // host memory: check lengths and page numbers
  bool shared_schedule = false;  // flashrel_schedule first, then calls that share what it made
};

struct RunResult {
  Status status;                // of the call
  std::vector<float> out, lse;  // (n_tokens, n_q_heads, head_dim) and (n_tokens, n_q_heads); NaN where nothing was written
  std::string damage;           // a sentence when bytes changed that must not; empty = all is well
  std::size_t workspace_bytes = 0;
};

// The memory that a backend runs in, by its name; false when no such backend is compiled in.
bool memory_of_backend(const std::string& name, MemoryKind& kind);

// The problem's buffers in the memory where it runs. `host` must outlive it; its output buffers are shared by all placements.
class Placement {
 public:
  // Allocates, copies the inputs in, sizes the workspace and makes the schedule if it is to be shared.
  static Status create(HostProblem& host, const RunOptions& options, Placement& placement);

  Status copy_inputs();                     // again, after the host problem's lengths, tables or data changed in place
  Status poison();                          // NaN into out, lse and workspace
  Status schedule(void* stream = nullptr);  // shared schedule only: again, after lengths or tables changed; does not wait
  Status launch(void* stream = nullptr);    // the call itself; does not wait
  RunResult collect();                      // waits, copies the results out, looks for damage

  flashrel_attention_args args() const;  // what they point to lives as long as this object
  void* workspace() const { return workspace_.data() + kGuardBytes; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  void place_tensors();

  HostProblem* host_ = nullptr;
  RunOptions options_;
  flashrel_attention_args args_{};
  std::vector<Block> inputs_, outputs_;  // CUDA only: mirrors of the host problem's buffers
  Block workspace_;                      // between guards
  std::size_t workspace_bytes_ = 0;
  Block schedule_;
  flashrel_schedule_buffer schedule_buffer_{};
};

// All of the above once.
RunResult run_host(HostProblem& host, const RunOptions& options);

}  // namespace flashrel::check
