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

struct ScheduleHeader {
  std::int32_t n_items = 0;
  std::int32_t n_slots = 0;
  std::int32_t n_merges = 0;   // entries of the merge list
  std::int32_t next_item = 0;  // counter from which CTAs take items
};

inline constexpr std::string_view kScheduleHeaderEntry = "schedule_header";
// The index in the item table of the first part of every unit that has several, in table order (int32).
inline constexpr std::string_view kMergeListEntry = "merge_list";

// Books the two entries beside "items", which make_plan books.
void book_schedule(const Plan& plan, Workspace& workspace);

// Enqueues the kernel that fills items, header (next_item = 0) and merge list.
Status launch_schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* workspace, void* stream);

}  // namespace flashrel::gpu
