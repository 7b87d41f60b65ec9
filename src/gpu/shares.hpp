// Equal shares on the device: the tables that index/shares.hpp's build_shares defines, from lengths that the host never sees.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "index/schedule.hpp"

namespace flashrel::gpu {

// What one CTA needs to begin: its items are [item_begin, item_end) of the item table; the first stands here with its
// sequence's lengths and the pages of its first keys, so that one read is enough.
struct alignas(64) Share {
  static constexpr int kPages = 32;
  std::int32_t item_begin = 0, item_end = 0;
  WorkItem first;
  std::int32_t kv_len = 0, q_len = 0, first_token = 0;
  std::int32_t unused[2] = {};
  std::int32_t pages[kPages] = {};  // of the block-table entries from that of the first item's first tile on; -1 = not needed
};

// Shares that the device form can make: a plan asks for no more.
inline constexpr int kMaxShares = 512;
inline constexpr std::string_view kSharesEntry = "shares";
// Counters for kernels that merge parts themselves: two of 32 bits a part slot, all 0 at first.
inline constexpr std::string_view kMergeCountersEntry = "merge_counters";

// Books the shares beside the work list.
void book_shares(Plan& plan);

// Enqueues the kernel that fills items, header, merge list, shares and counters; plan.schedule.n_shares > 0.
Status launch_shares(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream);

}  // namespace flashrel::gpu
