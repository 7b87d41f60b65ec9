// What cutting a batch into work items depends on, and what it gives. The rules: index/schedule.hpp and index/shares.hpp.
#pragma once

#include <cstdint>

#include "index/distance.hpp"

namespace flashrel {

// Everything that cutting depends on besides the lengths; part of the Plan.
struct ScheduleShape {
  int n_seqs = 0, n_kv_heads = 1, group = 1;
  int tile_rows = 64, tile_keys = 64;
  Range visible{-kFar, kFar};  // distances
  // Cutting rule, first that applies. The first two look at the unit alone, never at its neighbours in the batch.
  int fixed_tiles_per_part = 0;  // deterministic: tiles of a part, more where max_parts asks for it; only sequences of a
                                 // single row tile are cut
  int max_parts = 0;             // num_splits = n: at most n parts a unit (0 = not asked for)
  int target_parts = 0;          // automatic: aim at this many parts in the whole batch (0 = never cut)
  int min_tiles_per_part = 1;    // automatic: a part has at least this many tiles
  int n_shares = 0;              // automatic, instead of target_parts: equal shares (index/shares.hpp), for units of a single
                                 // row tile
  // Sequences of other numbers of packed rows are another plan's (Plan::few_rows) and have no items here.
  Range served_rows{0, kFar};
  int by_cost = 0;  // 1: sequences of long parts come first (cost_class); not with n_shares
  constexpr bool operator==(const ScheduleShape&) const = default;
};

// A sequence as the schedule sees it: without rows when it is another plan's.
FLASHREL_HD constexpr Lengths served_lengths(const ScheduleShape& s, Lengths lengths) {
  const long long rows = static_cast<long long>(lengths.q_len) * s.group;
  return s.served_rows.contains(static_cast<int>(min_of<long long>(rows, kFar - 1))) ? lengths : Lengths{0, lengths.kv_len};
}

struct WorkItem {
  int seq = 0, kv_head = 0;
  int row_tile = 0;                  // rows [row_tile, row_tile + 1) * tile_rows of the packed rows, cut at q_len * group
  int tile_begin = 0, tile_end = 0;  // key tiles; empty = the rows see nothing
  int slot = -1;                     // of the workspace; -1 = write out and lse directly
  int n_parts = 1, part = 0;
  int n_rows = 0;  // rows of this tile that exist
  constexpr bool operator==(const WorkItem&) const = default;
};

// What stands beside the items, in the same memory.
struct ScheduleHeader {
  std::int32_t n_items = 0;
  std::int32_t n_slots = 0;
  std::int32_t n_merges = 0;   // entries of the merge list
  std::int32_t next_item = 0;  // GPU: counter from which CTAs take items; every run leaves it at 0 again
};

// Host bounds that size the workspace; nothing here is read from tensors.
struct ScheduleBounds {
  std::int64_t n_items = 0;  // of the item table
  std::int64_t n_slots = 0;  // of the part buffers
};

}  // namespace flashrel
