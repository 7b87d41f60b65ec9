#include "index/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "index/reference_pairs.hpp"

namespace flashrel {
namespace {

using reference::Rule;

void print_count(long long n) { std::printf("%lld combinations\n", n); }

// How a schedule may cut; the rules of ScheduleShape.
struct Cut {
  int max_parts = 0, fixed_tiles = 0, target_parts = 0, min_tiles = 1;
  int by_cost = 0;
};

std::vector<Cut> all_cuts() {
  std::vector<Cut> cuts{{}};
  for (int n = 1; n <= 9; ++n) cuts.push_back({.max_parts = n});
  for (int n : {1, 2, 3})
    for (int most : {0, 1, 4}) cuts.push_back({.max_parts = most, .fixed_tiles = n});
  for (int target : {1, 2, 5, 16, 64, 1000})
    for (int min_tiles : {1, 3}) cuts.push_back({.target_parts = target, .min_tiles = min_tiles});
  for (std::size_t i = 0, n = cuts.size(); i < n; ++i) {
    cuts.push_back(cuts[i]);
    cuts.back().by_cost = 1;
  }
  return cuts;
}

struct Tiling {
  int tile_rows, tile_keys, group, n_kv_heads;
};

ScheduleShape shape_of(const Tiling& t, const Cut& cut, Range visible, int n_seqs) {
  ScheduleShape s;
  s.n_seqs = n_seqs;
  s.n_kv_heads = t.n_kv_heads;
  s.group = t.group;
  s.tile_rows = t.tile_rows;
  s.tile_keys = t.tile_keys;
  s.visible = visible;
  s.max_parts = cut.max_parts;
  s.fixed_tiles_per_part = cut.fixed_tiles;
  s.target_parts = cut.target_parts;
  s.min_tiles_per_part = cut.min_tiles;
  s.by_cost = cut.by_cost;
  return s;
}

struct Table {
  std::vector<WorkItem> items;
  int n_slots = 0;
};

Table table_of(const ScheduleShape& s, const std::vector<Lengths>& batch) {
  Table table;
  table.n_slots =
      build_schedule(s, [&](int seq) { return batch[seq]; }, [&](const WorkItem& item) { table.items.push_back(item); });
  return table;
}

// The parts of one unit, found in the table by the unit's name.
struct Unit {
  std::vector<const WorkItem*> parts;
};

// Checks every claim of the schedule for one batch; returns the first that fails.
class Checker {
 public:
  Checker(const ScheduleShape& s, const std::vector<Lengths>& batch, const reference::DistanceCounts& counts)
      : s_(s), batch_(batch), counts_(counts), table_(table_of(s, batch)) {}

  std::optional<std::string> failure() {
    if (auto text = check_bounds()) return text;
    slot_used_.assign(table_.n_slots, false);
    std::size_t first = 0;
    for (const int seq : sequence_order()) {
      const int n_rows = batch_[seq].q_len * s_.group, n_row_tiles = (n_rows + s_.tile_rows - 1) / s_.tile_rows;
      units_.assign(static_cast<std::size_t>(n_row_tiles * s_.n_kv_heads), {});
      for (; first < table_.items.size() && table_.items[first].seq == seq; ++first) {
        const WorkItem& item = table_.items[first];
        if (item.row_tile < 0 || item.row_tile >= n_row_tiles || item.kv_head < 0 || item.kv_head >= s_.n_kv_heads)
          return "an item names a unit that does not exist";
        if (item.n_rows != std::min(s_.tile_rows, n_rows - item.row_tile * s_.tile_rows)) return "n_rows is wrong";
        units_[item.row_tile * s_.n_kv_heads + item.kv_head].parts.push_back(&item);
      }
      pairs_.fill(counts_, batch_[seq], s_.tile_keys);
      for (int u = 0; u < n_row_tiles * s_.n_kv_heads; ++u)
        if (auto text = check_unit(seq, u / s_.n_kv_heads, units_[u])) return text;
    }
    if (first != table_.items.size()) return "items of sequences that do not exist, or out of order";
    for (bool used : slot_used_)
      if (!used) return "a slot that nobody writes";
    return std::nullopt;
  }

  const Table& table() const { return table_; }

 private:
  // The order in which sequences must come: as they are, or by the size class of the last row tile's longest part.
  std::vector<int> sequence_order() const {
    std::vector<int> order(static_cast<std::size_t>(s_.n_seqs)), longest(order.size(), 0);
    for (int seq = 0; seq < s_.n_seqs; ++seq) order[seq] = seq;
    if (s_.by_cost == 0) return order;
    for (const WorkItem& item : table_.items)
      if (item.n_rows + item.row_tile * s_.tile_rows == batch_[item.seq].q_len * s_.group)
        longest[item.seq] = std::max(longest[item.seq], item.tile_end - item.tile_begin);
    const auto size_class = [&](int seq) { return longest[seq] == 0 ? -1 : std::ilogb(longest[seq]); };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return size_class(a) > size_class(b); });
    return order;
  }

  std::optional<std::string> check_bounds() const {
    std::int64_t n_tokens = 0, max_q = 0, max_k = 0;
    for (const Lengths& lengths : batch_) {
      n_tokens += lengths.q_len;
      max_q = std::max<std::int64_t>(max_q, lengths.q_len), max_k = std::max<std::int64_t>(max_k, lengths.kv_len);
    }
    for (const auto& [more_tokens, more_q, more_k] : {std::tuple{0, 0, 0}, std::tuple{5, 3, 1000}, std::tuple{300, 0, 0}}) {
      const ScheduleBounds bounds = schedule_bounds(s_, n_tokens + more_tokens, max_q + more_q, max_k + more_k);
      if (static_cast<std::int64_t>(table_.items.size()) > bounds.n_items) return "more items than booked";
      if (table_.n_slots > bounds.n_slots) return "more slots than booked";
    }
    return std::nullopt;
  }

  std::optional<std::string> check_unit(int seq, int row_tile, const Unit& unit) {
    const int first_row = row_tile * s_.tile_rows;
    const int end_row = std::min(first_row + s_.tile_rows, batch_[seq].q_len * s_.group);
    const int first_token = first_row / s_.group, end_token = (end_row - 1) / s_.group + 1;
    const int n_parts = static_cast<int>(unit.parts.size());
    if (n_parts == 0) return "a unit without an item: its rows are never written";
    covered_.assign(pairs_.n_tiles(), 0);
    for (int p = 0; p < n_parts; ++p) {
      const WorkItem& item = *unit.parts[p];
      if (item.part != p || item.n_parts != n_parts) return "parts are not numbered in key order";
      if (p > 0 && item.tile_begin != unit.parts[p - 1]->tile_end) return "parts do not follow each other";
      if (item.tile_begin > item.tile_end || (n_parts > 1 && item.tile_begin == item.tile_end)) return "an empty part";
      if (item.tile_begin < item.tile_end && (item.tile_begin < 0 || item.tile_end > pairs_.n_tiles()))
        return "tiles past kv_len";
      for (int tile = item.tile_begin; tile < item.tile_end; ++tile) ++covered_[tile];
      if (n_parts == 1 ? item.slot != -1 : item.slot != unit.parts[0]->slot + p) return "a slot that combine would not find";
      if (item.slot >= table_.n_slots || (n_parts > 1 && item.slot < 0)) return "a slot outside the part buffers";
      if (item.slot >= 0 && slot_used_[item.slot]) return "two parts share a slot";
      if (item.slot >= 0) slot_used_[item.slot] = true;
    }
    for (int tile = 0; tile < pairs_.n_tiles(); ++tile)
      if (covered_[tile] != (pairs_.visible(first_token, end_token, tile) > 0))
        return "a tile is missed, visited twice, or in vain";
    return check_cut(seq, unit);
  }

  std::optional<std::string> check_cut(int seq, const Unit& unit) const {
    const int n_parts = static_cast<int>(unit.parts.size());
    const int n_tiles = unit.parts.back()->tile_end - unit.parts.front()->tile_begin;
    if (s_.max_parts > 0 && n_parts > s_.max_parts) return "more than num_splits parts";
    if (s_.fixed_tiles_per_part > 0) {
      const bool one_row_tile = batch_[seq].q_len * s_.group <= s_.tile_rows;
      if (!one_row_tile && n_parts > 1) return "a deterministic prefill is cut";
      const int longest = std::max(s_.fixed_tiles_per_part, s_.max_parts > 0 ? (n_tiles + s_.max_parts - 1) / s_.max_parts : 0);
      for (const WorkItem* item : unit.parts)
        if (one_row_tile && item->tile_end - item->tile_begin > longest) return "a deterministic part is too long";
    } else if (s_.max_parts > 0) {
      if (2 * n_parts < std::min(s_.max_parts, n_tiles)) return "fewer parts than half of num_splits";
    } else if (s_.target_parts > 0) {
      for (int p = 0; p + 1 < n_parts; ++p)
        if (unit.parts[p]->tile_end - unit.parts[p]->tile_begin < s_.min_tiles_per_part) return "a part below the minimum";
    } else if (n_parts > 1) {
      return "cut without being asked";
    }
    return std::nullopt;
  }

  const ScheduleShape& s_;
  const std::vector<Lengths>& batch_;
  const reference::DistanceCounts& counts_;
  Table table_;
  std::vector<Unit> units_;
  std::vector<int> covered_;
  std::vector<bool> slot_used_;
  reference::PairCounts pairs_;
};

std::string describe(const ScheduleShape& s, const Rule& rule, const std::vector<Lengths>& batch) {
  std::ostringstream text;
  text << rule << " tiles " << s.tile_rows << "x" << s.tile_keys << " group " << s.group << " kv heads " << s.n_kv_heads
       << " max_parts " << s.max_parts << " fixed " << s.fixed_tiles_per_part << " target " << s.target_parts << " min "
       << s.min_tiles_per_part << " by_cost " << s.by_cost << " batch";
  for (const Lengths& lengths : batch) text << " (" << lengths.q_len << ", " << lengths.kv_len << ")";
  return text.str();
}

std::vector<Tiling> all_tilings() {
  std::vector<Tiling> tilings;
  for (int tile_rows : {16, 64, 128})
    for (int tile_keys : {32, 64, 128})
      for (int group : {1, 2, 3, 4, 8})
        tilings.push_back({tile_rows, tile_keys, group, 1 + static_cast<int>(tilings.size()) % 3});
  return tilings;
}

// Draws from a list; the same sequence of draws in every run.
struct Draw {
  std::mt19937 random{20251129};
  template <class T>
  const T& from(const std::vector<T>& list) {
    return list[random() % list.size()];
  }
};

// All lengths x all tilings; windows and cuts are drawn.
TEST(Schedule, OneSequenceOfEveryLength) {
  const std::vector<Cut> cuts = all_cuts();
  Draw draw;
  long long n = 0;
  for (const Tiling& tiling : all_tilings()) {
    const std::vector<Rule> windows = reference::windows(tiling.tile_keys);
    std::vector<reference::DistanceCounts> counts(windows.begin(), windows.end());
    for (const int q_len : reference::q_lens(tiling.tile_rows))
      for (int kv_len = 0; kv_len <= reference::kMaxKvLen; kv_len += reference::kKvLenStep, ++n) {
        const std::size_t w = draw.random() % windows.size();
        const std::vector<Lengths> batch{{q_len, kv_len}};
        const ScheduleShape s = shape_of(tiling, draw.from(cuts), windows[w].visible(), 1);
        const auto failure = Checker(s, batch, counts[w]).failure();
        ASSERT_FALSE(failure) << *failure << ": " << describe(s, windows[w], batch);
      }
  }
  print_count(n);
}

// Batches of 1 ... 4 sequences out of a list with empty ones; tilings, windows and cuts are drawn.
TEST(Schedule, BatchesWithEmptySequences) {
  const std::vector<Lengths> lengths{{0, 0},   {0, 100}, {1, 0},   {1, 1},     {1, 300},
                                     {9, 200}, {17, 16}, {70, 70}, {130, 257}, {257, 33}};
  const std::vector<Tiling> tilings = all_tilings();
  const std::vector<Cut> cuts = all_cuts();
  Draw draw;
  std::vector<std::vector<Lengths>> batches{{}};
  long long n = 0;
  for (std::size_t done = 0, size = 0; size <= 4; ++size) {
    const std::size_t end = batches.size();
    for (; done < end; ++done) {
      for (int repeat = 0; repeat < 12; ++repeat, ++n) {
        const Tiling& tiling = draw.from(tilings);
        const std::vector<Rule> windows = reference::windows(tiling.tile_keys);
        const Rule& rule = draw.from(windows);
        const std::vector<Lengths>& batch = batches[done];
        const ScheduleShape s = shape_of(tiling, draw.from(cuts), rule.visible(), static_cast<int>(batch.size()));
        const reference::DistanceCounts counts(rule);
        const auto failure = Checker(s, batch, counts).failure();
        ASSERT_FALSE(failure) << *failure << ": " << describe(s, rule, batch);
      }
      if (size == 4) continue;
      for (const Lengths& next : lengths) {
        batches.push_back(batches[done]);
        batches.back().push_back(next);
      }
    }
  }
  print_count(n);
}

// `deterministic` and num_splits cut a sequence as if it were alone.
TEST(Schedule, NeighboursDoNotMoveFixedCuts) {
  const std::vector<Lengths> batch{{1, 300}, {0, 77}, {70, 130}, {3, 0}, {2, 257}};
  for (const Tiling& tiling : all_tilings())
    for (const Cut& cut : all_cuts()) {
      if (cut.target_parts > 0 || cut.by_cost != 0) continue;  // the latter would change the order of the sequences
      const Range visible = visible_distances(true, 200, -1);
      const Table together = table_of(shape_of(tiling, cut, visible, 5), batch);
      std::size_t at = 0;
      for (int seq = 0; seq < 5; ++seq)
        for (const WorkItem& alone : table_of(shape_of(tiling, cut, visible, 1), {batch[seq]}).items) {
          const WorkItem& item = together.items[at++];
          ASSERT_EQ(item.seq, seq);
          ASSERT_TRUE(item.kv_head == alone.kv_head && item.row_tile == alone.row_tile && item.part == alone.part &&
                      item.tile_begin == alone.tile_begin && item.tile_end == alone.tile_end && item.n_parts == alone.n_parts);
        }
      ASSERT_EQ(at, together.items.size());
    }
}

// The automatic rule fills the machine when there is enough to cut, and never books more than twice the target.
TEST(Schedule, AutomaticCutsReachTheirTarget) {
  long long n = 0;
  for (int n_seqs : {1, 2, 7, 64})
    for (int q_len : {1, 4, 300})
      for (int kv_len : {1, 1000, 131072})
        for (int target : {1, 16, 132, 264})
          for (int min_tiles : {1, 4}) {
            const ScheduleShape s =
                shape_of({64, 64, 8, 2}, {.target_parts = target, .min_tiles = min_tiles}, {0, kFar}, n_seqs);
            const std::vector<Lengths> batch(n_seqs, {q_len, kv_len});
            const Table table = table_of(s, batch);
            const std::int64_t tiles = batch_tiles(s, [&](int seq) { return batch[seq]; });
            ASSERT_LE(table.n_slots, 2 * target);
            ASSERT_GE(2 * static_cast<std::int64_t>(table.items.size()), std::min<std::int64_t>(target, tiles / min_tiles));
            ++n;
          }
  print_count(n);
}

// The booked table is the real one plus less than a row tile a sequence, when all sequences have the bounds' lengths.
TEST(Schedule, BoundsAreTight) {
  for (const Tiling& tiling : all_tilings())
    for (int n_seqs : {1, 3, 20})
      for (int q_len : {1, 2, 16, 100, 1000})
        for (int kv_len : {1, 100, 5000})
          for (int window : {-1, 0, 511})
            for (const Cut& cut : {Cut{}, Cut{.max_parts = 8}, Cut{.fixed_tiles = 2}, Cut{.max_parts = 8, .fixed_tiles = 2}}) {
              const ScheduleShape s = shape_of(tiling, cut, visible_distances(true, window, -1), n_seqs);
              const std::vector<Lengths> batch(n_seqs, {q_len, kv_len});
              const Table table = table_of(s, batch);
              const ScheduleBounds bounds = schedule_bounds(s, static_cast<std::int64_t>(n_seqs) * q_len, q_len, kv_len);
              std::int64_t n_units = 0, most_parts = 1;
              for (const WorkItem& item : table.items)
                n_units += item.part == 0, most_parts = std::max<std::int64_t>(most_parts, item.n_parts);
              const std::int64_t unit_bound = n_units + n_seqs * s.n_kv_heads;
              ASSERT_LE(bounds.n_items - bounds.n_slots, unit_bound);
              // Other lengths within the bounds may cut more: the top rows of a prefill see little, a short one is cut at all.
              const bool same_for_all = kv_len >= q_len && (cut.fixed_tiles == 0 || q_len * tiling.group <= tiling.tile_rows);
              const std::int64_t parts_bound =
                  cut.max_parts + cut.fixed_tiles == 0 ? 0 : std::max<std::int64_t>(2 * most_parts, 3);
              if (same_for_all) {
                ASSERT_LE(bounds.n_slots, unit_bound * parts_bound);
              }
            }
}

// Workers who take items one by one from the table end together whatever order the sequences come in: chunks of 512 tokens on
// 0 ... 30K tokens of context, one KV head, uncut. In the batch's own order the longest units come last.
TEST(Schedule, SequencesByCostEndTogether) {
  std::vector<Lengths> batch;
  for (int i = 0; i < 16; ++i) batch.push_back({512, 512 + 2048 * i});
  const auto makespan = [&](int by_cost) {
    const ScheduleShape s = shape_of({128, 128, 8, 1}, {.by_cost = by_cost}, {0, kFar}, 16);
    std::vector<std::int64_t> busy(132, 0);
    for (const WorkItem& item : table_of(s, batch).items)
      *std::min_element(busy.begin(), busy.end()) += item.tile_end - item.tile_begin;
    return *std::max_element(busy.begin(), busy.end());
  };
  const ScheduleShape s = shape_of({128, 128, 8, 1}, {}, {0, kFar}, 16);
  const std::int64_t even = batch_tiles(s, [&](int seq) { return batch[seq]; }) / 132;
  EXPECT_GT(100 * makespan(0), 115 * even);
  EXPECT_LT(100 * makespan(1), 108 * even);
}

// A window's cost is what the window holds: tiles do not grow with kv_len.
TEST(Schedule, WindowCostDoesNotGrowWithKvLen) {
  for (const Tiling& tiling : all_tilings())
    for (int q_len : {1, 9, 200}) {
      const ScheduleShape s = shape_of(tiling, {}, visible_distances(true, 511, -1), 1);
      const auto tiles_at = [&](int kv_len) { return batch_tiles(s, [&](int) { return Lengths{q_len, kv_len}; }); };
      const std::int64_t cost = tiles_at(1024);
      for (int kv_len : {2048, 131072, 1 << 20, kMaxLength - 128}) ASSERT_EQ(tiles_at(kv_len), cost);
      ASSERT_LE(max_unit_tiles(s, kMaxLength - 1), (511 + tiling.tile_rows) / tiling.tile_keys + 3);
    }
}

// Two plans that share out the sequences of a batch by their rows: each has the items of the batch in which the sequences of
// the other have no rows.
TEST(Schedule, SequencesOfOtherRowsHaveNoItems) {
  std::mt19937 random(2);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  const std::vector<Tiling> tilings = all_tilings();
  const std::vector<Cut> cuts = all_cuts();
  for (int trial = 0; trial < 3000; ++trial) {
    const Tiling& tiling = tilings[static_cast<std::size_t>(upto(static_cast<int>(tilings.size()) - 1))];
    ScheduleShape s = shape_of(tiling, cuts[static_cast<std::size_t>(upto(static_cast<int>(cuts.size()) - 1))],
                               visible_distances(true, upto(1) ? upto(200) : -1, -1), 1 + upto(6));
    const int few_rows = upto(40);
    std::vector<Lengths> batch, few, many;
    for (int seq = 0; seq < s.n_seqs; ++seq) {
      const Lengths lengths{upto(3) == 0 ? 0 : upto(upto(1) ? 60 : 4), upto(900)};
      const bool has_few = lengths.q_len * s.group <= few_rows;
      batch.push_back(lengths);
      few.push_back(has_few ? lengths : Lengths{0, lengths.kv_len});
      many.push_back(has_few ? Lengths{0, lengths.kv_len} : lengths);
    }
    for (const bool of_few : {false, true}) {
      s.n_shares = of_few && upto(1) ? 1 + upto(9) : 0;
      s.served_rows = of_few ? Range{0, few_rows + 1} : Range{few_rows + 1, kFar};
      const Table table = table_of(s, batch);
      s.served_rows = {0, kFar};
      const Table expected = table_of(s, of_few ? few : many);
      ASSERT_EQ(table.items, expected.items) << "trial " << trial;
      ASSERT_EQ(table.n_slots, expected.n_slots);
    }
  }
  ScheduleShape s;
  s.group = 16;
  EXPECT_EQ(served_lengths(s, {kMaxLength - 1, 1}).q_len, kMaxLength - 1) << "rows past every bound are served";
}

TEST(Schedule, LengthsNearTheLimit) {
  constexpr int kLast = kMaxLength - 1;
  for (const Tiling& tiling : all_tilings()) {
    const int n_tiles = kMaxLength / tiling.tile_keys;
    for (const Cut& cut : {Cut{}, Cut{.max_parts = 9}, Cut{.fixed_tiles = n_tiles / 3}, Cut{.target_parts = 100}}) {
      const ScheduleShape s = shape_of(tiling, cut, {0, kFar}, 2);
      const Table table = table_of(s, {{1, kLast}, {1, kLast}});
      std::int64_t covered = 0;
      for (const WorkItem& item : table.items) {
        ASSERT_TRUE(0 <= item.tile_begin && item.tile_begin < item.tile_end && item.tile_end <= n_tiles);
        covered += item.tile_end - item.tile_begin;
      }
      ASSERT_EQ(covered, 2ll * tiling.n_kv_heads * n_tiles);
      const ScheduleBounds bounds = schedule_bounds(s, 2, 1, kLast);
      ASSERT_TRUE(static_cast<std::int64_t>(table.items.size()) <= bounds.n_items && table.n_slots <= bounds.n_slots);
    }
    // The longest prefill: as many packed rows as api/validate lets pass.
    constexpr int kMostRows = std::numeric_limits<int>::max() - 1024;
    const ScheduleShape s = shape_of(tiling, {}, {0, kFar}, 1);
    const Lengths lengths{std::min(kLast, kMostRows / tiling.group), kLast};
    const int last = row_tiles(lengths.q_len, tiling.group, tiling.tile_rows) - 1;
    ASSERT_EQ(unit_tiles(s, lengths, last), (Range{0, n_tiles}));
    ASSERT_EQ(unit_rows(s, lengths, last).end, lengths.q_len * tiling.group);
    const WorkItem item = make_item(make_unit(s, lengths, 0, last, 0), 0, 0, -1);
    ASSERT_TRUE(item.tile_end == n_tiles && 0 < item.n_rows && item.n_rows <= tiling.tile_rows);
  }
}

}  // namespace
}  // namespace flashrel
