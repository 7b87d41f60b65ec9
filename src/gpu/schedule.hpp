// The schedule on the device: the table that index/schedule.hpp's build_schedule defines, from lengths that the host never
// sees. Called by the GPU backends before their kernel; the merge list is read by combine/combine_cuda.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel::gpu {

// Enqueues the kernel that fills items, header (next_item = 0) and merge list.
Status launch_schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream);

}  // namespace flashrel::gpu
