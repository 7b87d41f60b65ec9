// What the mma backend serves and how: host-only decisions from Problem, Device and Options.
#pragma once

#include <string>

#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel::mma {

inline constexpr int kMaxRelDim = 64;

// head_dim that kernel_rows.cuh is compiled for: the problem's, padded with zeros; 0 when there is none.
int padded_head_dim(const Problem& problem);
// Whether the kernel for few rows (kernel_keys.cuh) is used; else kernel_rows.cuh. Not with `deterministic`: max_seqlen_q
// belongs to the batch, and the two kernels round differently.
bool uses_keys_kernel(const Problem& problem, const Options& options);

std::string supports(const Problem& problem, const Device& device, const Options& options);
Policy choose_policy(const Problem& problem, const Device& device, const Options& options);

}  // namespace flashrel::mma
