// The operator done naively in the problem's own precision: plain loops that accumulate in float32, P and the output rounded
// to the dtype. Its error against the definition is the yardstick of every backend.
#pragma once

#include "core/definition.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel::check {

// Writes head_dim numbers to out, as the dtype holds them.
void naive_row(const Problem& problem, const Tensors& tensors, const RowPlace& row, float* out, float* lse);

}  // namespace flashrel::check
