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
// Which kernels a call launches. Items of at most KeysShape::kTileRows rows go to kernel_keys.cuh where it is launched, all
// others to kernel_rows.cuh.
struct Kernels {
  bool keys = false, rows = false;
  bool operator==(const Kernels&) const = default;
};
// With `deterministic` the keys kernel takes its items whatever the batch's bounds are, because the two round differently.
// Without, a batch of equal lengths is spared the second launch.
Kernels choose_kernels(const Problem& problem, bool deterministic);

std::string supports(const Problem& problem, const Device& device, const Options& options);
Policy choose_policy(const Problem& problem, const Device& device, const Options& options);

}  // namespace flashrel::mma
