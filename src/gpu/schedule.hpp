// The schedule on the device: the table that index/schedule.hpp's build_schedule defines, from lengths that the host never
// sees. Called by the GPU backends before their kernel; the merge list is read by combine/combine_cuda.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "gpu/params.hpp"

namespace flashrel::gpu {

// The tables that a schedule kernel fills, and what from.
struct ScheduleTables {
  ScheduleShape shape;
  BatchParams batch;
  WorkItem* items = nullptr;
  std::int64_t n_items_max = 0, n_slots_max = 0;  // booked; never exceeded while lengths keep to the plan's bounds
  std::int32_t* merges = nullptr;
  ScheduleHeader* header = nullptr;
};
ScheduleTables make_schedule_tables(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule);

// Enqueues the kernel that fills items, header (next_item = 0) and merge list.
Status launch_schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream);

}  // namespace flashrel::gpu
