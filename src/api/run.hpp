// How a plan runs: schedule, backend, merge of parts. The C ABI's functions and tests that force a policy come through here.
#pragma once

#include <cstddef>

#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel {

// Bytes of the caller's workspace. Without a shared schedule the call's own stands behind its scratch.
std::size_t workspace_bytes(const Plan& plan, bool shares_schedule);

// `shared_schedule`: filled by an earlier call for an equal plan, or nullptr.
CallMemory place_memory(const Plan& plan, void* workspace, void* shared_schedule);

// Fills a schedule that calls of an equal plan share.
Status run_schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream);

Status run_plan(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream);

}  // namespace flashrel
