// Equal shares: the key tiles of a whole batch, laid end to end, are cut into runs of equal length, one a worker; where a cut
// falls inside a unit, the unit becomes several parts. For units of a single row tile (decode): units are the (sequence, KV
// head) pairs with query rows, sequence by sequence; tile positions count over all of them.
//
// Host + device: build_shares is the host form; the device form (gpu/shares.cu) makes the same tables.
#pragma once

#include <cstdint>
#include <vector>

#include "index/ranges.hpp"
#include "index/schedule_shape.hpp"

namespace flashrel {

// One sequence as cutting sees it.
struct SeqTiles {
  Range tiles;  // of each of its units
  int n_units = 0;

  FLASHREL_HD constexpr std::int64_t total() const { return static_cast<std::int64_t>(tiles.size()) * n_units; }
};

FLASHREL_HD constexpr SeqTiles seq_tiles(const ScheduleShape& s, Lengths lengths) {
  if (served_lengths(s, lengths).q_len <= 0) return {};
  return {key_tiles(visible_keys({0, lengths.q_len}, lengths, s.visible), s.tile_keys), s.n_kv_heads};
}

// How many shares are used: a share has at least one tile, and someone must take the units without any.
FLASHREL_HD constexpr int used_shares(const ScheduleShape& s, std::int64_t total_tiles) {
  return static_cast<int>(clamp_to<std::int64_t>(total_tiles, 1, s.n_shares));
}

// Where share i begins if every cut stays where it falls.
FLASHREL_HD constexpr std::int64_t even_cut(std::int64_t total_tiles, int n_shares, int i) {
  return total_tiles * i / n_shares;
}

// Units of at most this many tiles are not cut: merging them would cost more than the uneven shares do. Where shares are long
// even that does not matter.
inline constexpr std::int64_t kLongShareKeys = 2048;
FLASHREL_HD constexpr std::int64_t smallest_cut_unit(const ScheduleShape& s, std::int64_t total_tiles, int n_shares) {
  const std::int64_t share = total_tiles / n_shares;
  return share * s.tile_keys < kLongShareKeys ? share / 3 : 0;
}

// A cut that falls `at` tiles into a unit of `n_tiles` (0 < at <= n_tiles) moves to the nearer end of a small unit.
FLASHREL_HD constexpr std::int64_t moved_cut(std::int64_t at, std::int64_t n_tiles, std::int64_t smallest_cut_unit) {
  if (n_tiles > smallest_cut_unit) return at;
  return at * 2 <= n_tiles ? 0 : n_tiles;
}

FLASHREL_HD constexpr WorkItem make_shared_item(const ScheduleShape& s, Lengths lengths, int seq, int kv_head, Range tiles) {
  WorkItem item;
  item.seq = seq;
  item.kv_head = kv_head;
  item.tile_begin = tiles.begin;
  item.tile_end = tiles.end;
  // A longer sequence breaks the plan's bounds.
  item.n_rows = static_cast<int>(min_of<std::int64_t>(static_cast<std::int64_t>(lengths.q_len) * s.group, s.tile_rows));
  return item;
}

// Slots: a cut inside a unit makes one part more, and the unit's first part needs one too.
constexpr ScheduleBounds share_bounds(const ScheduleShape& s, std::int64_t n_tokens, std::int64_t max_seqlen_k) {
  const std::int64_t units = min_of<std::int64_t>(s.n_seqs, n_tokens) * s.n_kv_heads;
  const std::int64_t tiles = ceil_div<std::int64_t>(max_seqlen_k, s.tile_keys);
  const std::int64_t cuts = units > 0 && tiles > 1 ? min_of<std::int64_t>(s.n_shares, units * tiles) - 1 : 0;
  return {units + cuts, 2 * cuts};
}

// Host form: calls emit(WorkItem) in the table's order and returns the number of slots used. `item_begin`, if given, gets the
// first item of each of the n_shares shares, and the number of items behind them. Shares that are not used are empty.
template <class LengthsOf, class Emit>
int build_shares(const ScheduleShape& s, LengthsOf&& lengths_of, Emit&& emit, std::vector<int>* item_begin = nullptr) {
  std::int64_t total = 0;
  for (int seq = 0; seq < s.n_seqs; ++seq) total += seq_tiles(s, lengths_of(seq)).total();
  const int n_used = used_shares(s, total);
  const std::int64_t smallest = smallest_cut_unit(s, total, n_used);
  std::vector<int> first_items{0};
  int n_items = 0, n_slots = 0;
  std::int64_t unit_begin = 0;
  for (int seq = 0; seq < s.n_seqs; ++seq) {
    const Lengths lengths = lengths_of(seq);
    const SeqTiles all = seq_tiles(s, lengths);
    const int n_tiles = all.tiles.size();
    for (int kv_head = 0; kv_head < all.n_units; ++kv_head, unit_begin += n_tiles) {
      std::vector<int> part_begin{0};
      for (int share = static_cast<int>(first_items.size()); share < n_used; ++share) {
        const std::int64_t cut = even_cut(total, n_used, share);
        if (cut > unit_begin + n_tiles) break;
        const int at = static_cast<int>(moved_cut(cut - unit_begin, n_tiles, smallest));
        if (at > 0) first_items.push_back(n_items + static_cast<int>(part_begin.size()));
        if (at == 0) first_items.push_back(n_items);
        if (at > 0 && at < n_tiles) part_begin.push_back(at);
      }
      const int n_parts = static_cast<int>(part_begin.size());
      part_begin.push_back(n_tiles);
      for (int part = 0; part < n_parts; ++part) {
        const int first_tile = all.tiles.begin;
        const auto i = static_cast<std::size_t>(part);
        WorkItem item =
            make_shared_item(s, lengths, seq, kv_head, {first_tile + part_begin[i], first_tile + part_begin[i + 1]});
        item.n_parts = n_parts, item.part = part;
        if (n_parts > 1) item.slot = n_slots + part;
        emit(item);
      }
      n_items += n_parts;
      if (n_parts > 1) n_slots += n_parts;
    }
  }
  first_items.resize(static_cast<std::size_t>(s.n_shares) + 1, n_items);
  if (item_begin != nullptr) *item_begin = first_items;
  return n_slots;
}

}  // namespace flashrel
