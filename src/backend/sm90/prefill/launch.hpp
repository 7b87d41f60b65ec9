// What the backend, launch.cu and the instances share.
#pragma once

#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kThreads = 384;  // three warpgroups
// A CTA starts with 168 registers a thread (65,536 / 384, in steps of 8) and can only hand those around: 24 + 2 * 240 = 3 *
// 168.
inline constexpr int kOtherRegisters = 24, kConsumerRegisters = 240;
static_assert(kOtherRegisters + 2 * kConsumerRegisters <= 3 * (65536 / kThreads / 8 * 8));

// Address of attention_kernel<T, kGroup>, instantiated in instances/: a missing instance is a link error.
template <class T, int kGroup>
const void* kernel_address();

// Enqueues the kernel.
Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream);

}  // namespace flashrel::sm90::prefill
