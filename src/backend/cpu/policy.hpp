// Speed parameters of the CPU backend: which row tile goes with which call. They never change results beyond rounding.
#pragma once

#include "core/plan.hpp"

namespace flashrel::cpu {

// A key tile is packed once for all rows of an item, so long row tiles make packing cheap; short ones give every thread
// work and keep the part buffers small. K and V of a 512-key tile at head_dim 128 take 256 KiB of L2 as bf16.
// EVIDENCE tile_rows 256: packing takes 5 % of an item, 29 % by count at 64 (docs/tuning.md, CPU, 2026-11-30).
// EVIDENCE min_tiles_per_part 2: a part of 1,024 keys reads 512 KiB, some 40 us; starting it costs about 1 us.
// EVIDENCE kCost: bench/results/2026-11-30-cpu.json; the shares are of the ceilings that `flashrel plan --measure` measures.
inline constexpr CostModel kCost{.fixed_us = 5, .read_share = 0.45, .matrix_share = 0.15};
inline constexpr Policy kPolicies[] = {
    {.name = "decode", .tile_rows = 16, .tile_keys = 512, .min_tiles_per_part = 2, .fixed_tiles_per_part = 8, .cost = kCost},
    {.name = "short", .tile_rows = 64, .tile_keys = 512, .min_tiles_per_part = 2, .fixed_tiles_per_part = 8, .cost = kCost},
    {.name = "prefill", .tile_rows = 256, .tile_keys = 512, .min_tiles_per_part = 2, .fixed_tiles_per_part = 8, .cost = kCost},
};

constexpr bool valid(const Policy& p) {
  return p.tile_rows > 0 && p.tile_keys > 0 && p.tile_keys % 256 == 0 && p.min_tiles_per_part > 0 && p.fixed_tiles_per_part > 0;
}
static_assert(valid(kPolicies[0]) && valid(kPolicies[1]) && valid(kPolicies[2]));

}  // namespace flashrel::cpu
