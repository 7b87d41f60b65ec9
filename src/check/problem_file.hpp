// Problem files: one case as a .safetensors file (docs/operator.md, "Problem file").
//
// Tensors: q, k_cache and v_cache (or kv_cache with metadata kv_layout = NHD | HND), block_table, cache_seqlens,
// cu_seqlens_q; rel_logits, or rel, rel_proj and optionally rel_scale, or neither; optionally out and lse, the expected
// float32 result. Metadata (all optional): softmax_scale, causal, window_left, window_right, rel_zero, rel_edge, num_splits.
#pragma once

#include <span>
#include <string>

#include "base/status.hpp"
#include "check/host_problem.hpp"
#include "check/safetensors.hpp"

namespace flashrel::check {

// Reads and checks everything, contents of lengths and tables included: a problem that was read can be run.
Status read_problem(const std::string& path, HostProblem& host);
// The same from memory; the fuzzer's entry.
Status parse_problem(std::span<const std::byte> bytes, HostProblem& host);

// Writes the inputs, and the expected result when the problem has one. Strides are not kept.
Status write_problem(const std::string& path, const HostProblem& host);

// out (n_tokens, n_q_heads, head_dim) and lse (n_tokens, n_q_heads) in float32; rows of no sequence are zeros. An empty lse
// is left out.
struct FileResult {
  std::vector<float> out, lse;
};
Status write_result(const std::string& path, const HostProblem& host, FileResult result);

}  // namespace flashrel::check
