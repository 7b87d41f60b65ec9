// What the mma backend serves and how: host-only decisions from Problem, Device and Options.
#pragma once

#include <string>

#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel::mma {

inline constexpr int kMaxRelDim = 64;

// head_dim that the kernels are compiled for: the problem's, padded with zeros; 0 when there is none.
int padded_head_dim(const Problem& problem);
// Whether the kernel for few rows (kernel_keys.cuh) is used; else kernel_rows.cuh.
bool uses_keys_kernel(const Problem& problem);

std::string supports(const Problem& problem, const Device& device, const Options& options);
Policy choose_policy(const Problem& problem, const Device& device, const Options& options);

}  // namespace flashrel::mma
