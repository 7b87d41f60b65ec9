// What the backend, launch.cu and the instances share.
#pragma once

#include <cstddef>

#include "backend/sm90/decode/tiles.hpp"
#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel::sm90::decode {

inline constexpr int kThreads = 384;  // three warpgroups
// A CTA starts with 168 registers a thread and can only hand those around: 104 + 2 * 200 = 3 * 168.
inline constexpr int kOtherRegisters = 104, kConsumerRegisters = 200;
static_assert(kOtherRegisters + 2 * kConsumerRegisters <= 3 * (65536 / kThreads / 8 * 8));

// Address of attention_kernel<T, kRows, kBias>, instantiated in instances/: a missing instance is a link error.
template <class T, int kRows, Bias kBias>
const void* kernel_address();

// Books what the kernel needs beside the schedule and the parts.
void book(const Problem& problem, Plan& plan);
// Enqueues the kernel.
Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream);

}  // namespace flashrel::sm90::decode
