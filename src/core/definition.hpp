// The operator in float64, untiled: the only truth. Every backend is judged against it; nothing else defines results.
// Called by flashrel check, flashrel verify and the tests. Reads host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel {

struct Truth {
  std::vector<double> out;  // (n_tokens, n_q_heads, head_dim), contiguous
  std::vector<double> lse;  // (n_tokens, n_q_heads); -inf where nothing is visible
  std::int64_t n_rows = 0;  // rows below cu_seqlens_q[n_seqs]; the rest are not defined and hold 0
};

// Tensors.out and lse are not used. Lengths and page numbers must be valid.
Truth define(const Problem& problem, const Tensors& tensors);

}  // namespace flashrel
