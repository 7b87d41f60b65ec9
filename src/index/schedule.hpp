// Work items: how the rows and keys of a batch are cut, the same on the host and on the device.
//
// A unit is one row tile of one (sequence, KV head). Its visible key tiles are cut into parts of `tiles_per_part` tiles.
// A unit of one part writes the result itself; a unit of several parts writes each to a slot of the workspace, to be
// merged in order. Row tiles come last to first, because a causal row tile costs more the later it stands; with by_cost
// sequences come in classes of cost, the costliest first, so that workers who take items one by one end together.
#pragma once

#include <bit>
#include <cstdint>

#include "index/distance.hpp"
#include "index/ranges.hpp"
#include "index/rows.hpp"
#include "index/schedule_shape.hpp"
#include "index/shares.hpp"

namespace flashrel {

FLASHREL_HD constexpr Range unit_rows(const ScheduleShape& s, Lengths lengths, int row_tile) {
  const long long n_rows = static_cast<long long>(lengths.q_len) * s.group;
  const long long begin = static_cast<long long>(row_tile) * s.tile_rows;
  return {static_cast<int>(begin), static_cast<int>(min_of<long long>(begin + s.tile_rows, n_rows))};
}

// Key tiles that a unit must visit.
FLASHREL_HD constexpr Range unit_tiles(const ScheduleShape& s, Lengths lengths, int row_tile) {
  const Range tokens = row_tokens(unit_rows(s, lengths, row_tile), s.group);
  return key_tiles(visible_keys(tokens, lengths, s.visible), s.tile_keys);
}

// Tiles a part of the automatic rule has, from the tiles of the whole batch over all KV heads.
FLASHREL_HD constexpr int auto_tiles_per_part(const ScheduleShape& s, std::int64_t batch_tiles) {
  const std::int64_t even = ceil_div<std::int64_t>(batch_tiles, max_of(s.target_parts, 1));
  return static_cast<int>(clamp_to<std::int64_t>(even, max_of(s.min_tiles_per_part, 1), kMaxLength));
}

// Tiles a part of this unit has.
FLASHREL_HD constexpr int unit_tiles_per_part(const ScheduleShape& s, Lengths lengths, int n_tiles, int auto_tiles) {
  const int whole = max_of(1, n_tiles);
  if (s.fixed_tiles_per_part > 0) {
    if (row_tiles(lengths.q_len, s.group, s.tile_rows) != 1) return whole;
    return s.max_parts > 0 ? max_of(s.fixed_tiles_per_part, ceil_div(n_tiles, s.max_parts)) : s.fixed_tiles_per_part;
  }
  if (s.max_parts > 0) return max_of(1, ceil_div(n_tiles, s.max_parts));
  return s.target_parts > 0 ? auto_tiles : whole;
}

// A unit without visible keys still is one part: it writes zeros.
FLASHREL_HD constexpr int unit_parts(int n_tiles, int tiles_per_part) { return max_of(1, ceil_div(n_tiles, tiles_per_part)); }

FLASHREL_HD constexpr Range part_tiles(Range unit, int part, int tiles_per_part) {
  const int end = max_of(unit.begin, unit.end);
  const int begin = min_of(unit.begin + part * tiles_per_part, end);
  return {begin, min_of(begin + tiles_per_part, end)};
}

// A unit as its items share it.
struct UnitShape {
  int seq = 0, row_tile = 0, n_rows = 0;
  Range tiles;
  int n_parts = 1, tiles_per_part = 1;
};

// Part `part` of a unit; `first_slot` is the unit's first slot for this KV head, -1 when it has one part.
FLASHREL_HD constexpr WorkItem make_item(const UnitShape& unit, int kv_head, int part, int first_slot) {
  const Range tiles = part_tiles(unit.tiles, part, unit.tiles_per_part);
  WorkItem item;
  item.seq = unit.seq;
  item.kv_head = kv_head;
  item.row_tile = unit.row_tile;
  item.tile_begin = tiles.begin;
  item.tile_end = tiles.end;
  item.slot = unit.n_parts > 1 ? first_slot + part : -1;
  item.n_parts = unit.n_parts;
  item.part = part;
  item.n_rows = unit.n_rows;
  return item;
}

// How a unit is cut; `auto_tiles` as in unit_tiles_per_part.
FLASHREL_HD constexpr UnitShape make_unit(const ScheduleShape& s, Lengths lengths, int seq, int row_tile, int auto_tiles) {
  UnitShape unit;
  unit.seq = seq;
  unit.row_tile = row_tile;
  unit.n_rows = unit_rows(s, lengths, row_tile).size();
  unit.tiles = unit_tiles(s, lengths, row_tile);
  unit.tiles_per_part = unit_tiles_per_part(s, lengths, unit.tiles.size(), auto_tiles);
  unit.n_parts = unit_parts(unit.tiles.size(), unit.tiles_per_part);
  return unit;
}

// Sequences of one class keep their order. The class is that of the last unit's longest part: c for 2^(c-1) ... 2^c - 1 key
// tiles. Finer classes gain nothing: inside a class parts differ by less than a factor of 2 (docs/decisions/0005).
inline constexpr int kCostClasses = 32;
FLASHREL_HD constexpr int cost_class(const ScheduleShape& s, Lengths lengths, int auto_tiles) {
  const int n_row_tiles = lengths.q_len > 0 ? row_tiles(lengths.q_len, s.group, s.tile_rows) : 0;
  if (s.by_cost == 0 || n_row_tiles == 0) return 0;
  const int n_tiles = max_of(0, unit_tiles(s, lengths, n_row_tiles - 1).size());
  const int longest = min_of(n_tiles, unit_tiles_per_part(s, lengths, n_tiles, auto_tiles));
  return static_cast<int>(std::bit_width(static_cast<unsigned>(longest)));
}

// Units over all KV heads for any lengths within the bounds: a sequence wastes less than one row tile.
constexpr std::int64_t max_units(const ScheduleShape& s, std::int64_t n_tokens, std::int64_t max_seqlen_q) {
  const std::int64_t by_tokens = n_tokens * s.group / s.tile_rows + s.n_seqs;
  const std::int64_t by_length = s.n_seqs * ceil_div<std::int64_t>(max_seqlen_q * s.group, s.tile_rows);
  return min_of(by_tokens, by_length) * s.n_kv_heads;
}

constexpr std::int64_t max_unit_tiles(const ScheduleShape& s, std::int64_t max_seqlen_k) {
  // A window of w distances over t tokens sees at most w + t - 1 keys, plus one tile of misalignment.
  const std::int64_t tokens = ceil_div(s.tile_rows, s.group) + 1;
  const std::int64_t span =
      min_of<std::int64_t>(max_seqlen_k, static_cast<std::int64_t>(s.visible.end) - s.visible.begin + tokens);
  return min_of(ceil_div<std::int64_t>(span, s.tile_keys) + 1, ceil_div<std::int64_t>(max_seqlen_k, s.tile_keys));
}

constexpr ScheduleBounds schedule_bounds(const ScheduleShape& s, std::int64_t n_tokens, std::int64_t max_seqlen_q,
                                         std::int64_t max_seqlen_k) {
  if (s.n_shares > 0) return share_bounds(s, n_tokens, max_seqlen_k);
  const std::int64_t units = max_units(s, n_tokens, max_seqlen_q);
  const std::int64_t tiles = max_unit_tiles(s, max_seqlen_k);
  std::int64_t slots = 0;
  if (s.fixed_tiles_per_part > 0) {
    std::int64_t parts = ceil_div<std::int64_t>(tiles, s.fixed_tiles_per_part);
    if (s.max_parts > 0) parts = min_of<std::int64_t>(parts, s.max_parts);
    slots = parts > 1 ? static_cast<std::int64_t>(s.n_seqs) * s.n_kv_heads * parts : 0;
  } else if (s.max_parts > 0) {
    const std::int64_t parts = min_of<std::int64_t>(s.max_parts, tiles);
    slots = parts > 1 ? units * parts : 0;
  } else if (s.target_parts > 0) {
    // parts > 1 only where tiles > tiles_per_part, so parts < 2 * tiles / tiles_per_part; summed: < 2 * target_parts.
    const std::int64_t parts = ceil_div<std::int64_t>(tiles, max_of(s.min_tiles_per_part, 1));
    slots = parts > 1 ? min_of<std::int64_t>(2 * static_cast<std::int64_t>(s.target_parts), units * parts) : 0;
  }
  return {units + slots, slots};
}

// Tiles of the whole batch over all KV heads; `lengths_of(seq)` gives Lengths.
template <class LengthsOf>
std::int64_t batch_tiles(const ScheduleShape& s, LengthsOf&& lengths_of) {
  std::int64_t total = 0;
  for (int seq = 0; seq < s.n_seqs; ++seq) {
    const Lengths lengths = served_lengths(s, lengths_of(seq));
    const int n_row_tiles = row_tiles(lengths.q_len, s.group, s.tile_rows);
    for (int row_tile = 0; row_tile < n_row_tiles; ++row_tile) total += unit_tiles(s, lengths, row_tile).size();
  }
  return total * s.n_kv_heads;
}

// Host form of the schedule: calls emit(WorkItem) in the table's order and returns the number of slots used.
// The device forms (gpu/schedule.cu, gpu/shares.cu) write the same table.
template <class LengthsOf, class Emit>
int build_schedule(const ScheduleShape& s, LengthsOf&& lengths_of, Emit&& emit) {
  if (s.n_shares > 0) return build_shares(s, lengths_of, emit);
  const int auto_tiles = s.target_parts > 0 ? auto_tiles_per_part(s, batch_tiles(s, lengths_of)) : 0;
  int n_slots = 0;
  const auto emit_sequence = [&](int seq, Lengths lengths) {
    for (int row_tile = row_tiles(lengths.q_len, s.group, s.tile_rows) - 1; row_tile >= 0; --row_tile) {
      const UnitShape unit = make_unit(s, lengths, seq, row_tile, auto_tiles);
      for (int kv_head = 0; kv_head < s.n_kv_heads; ++kv_head) {
        const int first_slot = unit.n_parts > 1 ? n_slots : -1;
        for (int part = 0; part < unit.n_parts; ++part) emit(make_item(unit, kv_head, part, first_slot));
        if (unit.n_parts > 1) n_slots += unit.n_parts;
      }
    }
  };
  for (int cost = s.by_cost != 0 ? kCostClasses - 1 : 0; cost >= 0; --cost)
    for (int seq = 0; seq < s.n_seqs; ++seq) {
      const Lengths lengths = served_lengths(s, lengths_of(seq));
      if (cost_class(s, lengths, auto_tiles) == cost) emit_sequence(seq, lengths);
    }
  return n_slots;
}

}  // namespace flashrel
