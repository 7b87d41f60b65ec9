// Plan: how one Problem runs on one Device. Depends on host bounds only, never on device memory, so it can be printed,
// compared, cached across layers and replayed in a CUDA graph.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "core/workspace.hpp"
#include "index/schedule.hpp"

namespace flashrel {

// What calls of a policy were measured to take: fixed_us (launches, first tile, merge), plus the longer of their bytes at this
// share of the device's nominal read bandwidth and their FLOP at this share of its nominal matrix rate. Shares of 0 = unknown.
struct CostModel {
  double fixed_us = 0, read_share = 0, matrix_share = 0;
  bool operator==(const CostModel&) const = default;
};

// A backend's choice of speed parameters: plain numbers that never change results beyond rounding.
struct Policy {
  std::string_view name;  // row of the backend's policy table
  int tile_rows = 64;     // packed rows of a work item
  int tile_keys = 64;
  int n_workers = 1;     // CTAs or threads that take items
  int target_parts = 0;  // automatic splitting aims at this many parts (0 = never cut)
  int min_tiles_per_part = 1;
  bool equal_shares = false;  // automatic, instead: every worker gets an equal run of the batch's key tiles (index/shares.hpp)
  int fixed_tiles_per_part = 1;  // deterministic cutting
  bool by_cost = false;          // sequences of long parts first (index/schedule.hpp); not with equal_shares
  Route route = Route::kNone;
  int patience_clocks = 0;  // equal shares: how long a CTA waits for the parts of others before it leaves the merge to them
  int stages = 1;           // depth of the key/value pipeline, where there is one
  int few_rows = 0;  // sequences of at most so many packed rows have a plan of their own, Plan::few_rows; 0 = all are alike
  CostModel cost;
  bool operator==(const Policy&) const = default;
};

// One backend's answer; `reason` is empty when it can serve.
struct Refusal {
  std::string backend, reason;
};

struct Backend;

// Entries of Plan::schedule_memory: WorkItem[n_items], ScheduleHeader, and the index in the item table of the first part of
// every unit that has several, in table order (int32).
inline constexpr std::string_view kItemsEntry = "items", kScheduleHeaderEntry = "schedule_header",
                                  kMergeListEntry = "merge_list";

struct Plan {
  const Backend* backend = nullptr;
  std::vector<Refusal> considered;  // in routing order, up to and including the chosen one
  Policy policy;
  ScheduleShape schedule;
  ScheduleBounds bounds;
  Workspace schedule_memory;  // filled from the lengths by Backend::schedule; any call of an equal plan may read it
  Workspace workspace;        // scratch of one call
  // None or one: the plan of the sequences of few rows in a batch that also holds long ones. It runs first; its memory lies in
  // this plan's, as the two entries below.
  std::vector<Plan> few_rows;
};
inline constexpr std::string_view kFewRowsScheduleEntry = "few_rows_schedule", kFewRowsWorkspaceEntry = "few_rows_workspace";

// Where a call's memory is.
struct CallMemory {
  void* schedule = nullptr;
  void* workspace = nullptr;
  bool schedule_is_shared = false;  // filled by an earlier call (flashrel_schedule), not just before this one
};

}  // namespace flashrel
