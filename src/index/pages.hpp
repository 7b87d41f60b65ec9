// Where a key lives: entry of the block table and slot inside the page, and whether a page number may be used.
#pragma once

#include <cstdint>

#include "base/int_math.hpp"
#include "index/distance.hpp"

namespace flashrel {

FLASHREL_HD constexpr int page_entry(int key, int page_size) { return key / page_size; }
FLASHREL_HD constexpr int page_slot(int key, int page_size) { return key % page_size; }

// Block-table entries that a range of keys needs.
FLASHREL_HD constexpr Range page_entries(Range keys, int page_size) {
  if (keys.empty()) return {0, 0};
  return {keys.begin / page_size, ceil_div(keys.end, page_size)};
}

// A wild page number must never become an address.
FLASHREL_HD constexpr bool page_in_cache(int page, std::int64_t n_pages) { return page >= 0 && page < n_pages; }

}  // namespace flashrel
