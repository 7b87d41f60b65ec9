// What a backend is: six functions and a name. backend/list.cpp holds the two ordered lists; plan/route walks them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel {

struct Backend {
  std::string_view name;
  MemoryKind memory;
  // Why this build or this backend's state keeps it out of `auto` ("" = it takes part). Forcing it by name still works
  // when it is compiled in.
  std::string (*off_reason)();
  // "" when it can serve; else one sentence: the argument, what was found, what is needed.
  std::string (*supports)(const Problem&, const Device&, const Options&);
  Policy (*choose_policy)(const Problem&, const Device&, const Options&);
  // Books what it needs in plan.schedule_memory and plan.workspace beyond the work list and the part buffers, which make_plan
  // books for everyone.
  void (*book)(const Problem&, Plan&);
  // Fills the schedule from cu_seqlens_q and cache_seqlens.
  Status (*schedule)(const Problem&, const Tensors&, const Plan&, void* schedule, void* stream);
  // Runs all work items: results of single-part items to out and lse, parts to the workspace's part buffers.
  // The caller merges the parts afterwards (combine/), but not those of equal shares (ScheduleShape::n_shares): they are merged
  // here.
  Status (*launch)(const Problem&, const Tensors&, const Plan&, const CallMemory&, void* stream);
};

// In routing order.
std::span<const Backend* const> backends_for(MemoryKind memory);

}  // namespace flashrel
