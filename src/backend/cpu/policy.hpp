// Speed parameters of the CPU backend: which row tile goes with which call. They never change results beyond rounding.
#pragma once

#include "core/plan.hpp"

namespace flashrel::cpu {

// A key tile is packed once for all rows of an item, so long row tiles make packing cheap; short ones give every thread
// work and keep the part buffers small.
inline constexpr Policy kPolicies[] = {
    {.name = "decode", .tile_rows = 16, .tile_keys = 128, .min_tiles_per_part = 8, .fixed_tiles_per_part = 32},
    {.name = "short", .tile_rows = 64, .tile_keys = 128, .min_tiles_per_part = 8, .fixed_tiles_per_part = 32},
    {.name = "prefill", .tile_rows = 256, .tile_keys = 128, .min_tiles_per_part = 8, .fixed_tiles_per_part = 32},
};

constexpr bool valid(const Policy& p) {
  return p.tile_rows > 0 && p.tile_keys > 0 && p.tile_keys % 32 == 0 && p.min_tiles_per_part > 0 && p.fixed_tiles_per_part > 0;
}
static_assert(valid(kPolicies[0]) && valid(kPolicies[1]) && valid(kPolicies[2]));

}  // namespace flashrel::cpu
