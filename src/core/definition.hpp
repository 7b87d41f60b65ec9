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

// One row of the same: a query head of a token, with the place of the token and its sequence's lengths.
struct RowPlace {
  int seq = 0, head = 0, token_in_seq = 0;
  std::int64_t token = 0;
  Lengths lengths;
};
// Writes head_dim numbers to out.
void define_row(const Problem& problem, const Tensors& tensors, const RowPlace& row, double* out, double* lse);

}  // namespace flashrel
