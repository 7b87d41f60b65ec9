#include "index/ranges.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <tuple>

#include "index/pages.hpp"
#include "index/reference_pairs.hpp"
#include "index/rows.hpp"

namespace flashrel {
namespace {

using reference::Rule;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

void print_count(long long n) { std::printf("%lld combinations\n", n); }

TEST(Distance, VisibleAndBandRangesAreTheRules) {
  long long n = 0;
  for (bool causal : {true, false})
    for (int left = -1; left <= 20; ++left)
      for (int right = -1; right <= 20; ++right)
        for (int zero = -12; zero <= 24; zero += 3)
          for (int extent : {0, 1, 2, 7, 20, 60})
            for (RelEdge edge : {RelEdge::kZero, RelEdge::kClamp}) {
              const Rule rule{causal, left, right, zero, extent, edge};
              for (int dist = -40; dist <= 40; ++dist, ++n) {
                ASSERT_EQ(rule.visible().contains(dist), rule.sees(dist)) << rule << " dist " << dist;
                ASSERT_EQ(rule.band().contains(dist), rule.biases(dist)) << rule << " dist " << dist;
                if (!rule.biases(dist)) continue;
                const int index = dist + zero;
                ASSERT_EQ(bias_index(dist, zero, extent), index < 0 ? 0 : index >= extent ? extent - 1 : index);
              }
            }
  print_count(n);
}

TEST(Distance, HugeWindowsAndExtentsMeanEverything) {
  constexpr int kLongest = kMaxLength - 1;
  for (std::int64_t huge : {std::int64_t{kFar}, std::int64_t{kFar} + 1, std::int64_t{1} << 40, kInt64Max}) {
    EXPECT_TRUE(visible_distances(true, huge, -1).contains(kLongest));
    EXPECT_TRUE(visible_distances(false, huge, huge).contains(kLongest));
    EXPECT_TRUE(visible_distances(false, huge, huge).contains(-kLongest));
    EXPECT_TRUE(band_distances(0, huge, RelEdge::kZero).contains(kLongest));
    EXPECT_FALSE(band_distances(0, huge, RelEdge::kZero).contains(-1));
    EXPECT_TRUE(band_distances(kFar, huge, RelEdge::kZero).contains(-kLongest));
  }
  EXPECT_FALSE(visible_distances(true, -1, -1).contains(-1));
  EXPECT_TRUE(visible_distances(false, -1, -1).contains(-kLongest));
  EXPECT_FALSE(visible_distances(true, kLongest - 1, -1).contains(kLongest));
  EXPECT_TRUE(visible_distances(true, kLongest, -1).contains(kLongest));
}

// Every pair of short sequences, every run of tokens, every run of keys (also past kv_len).
TEST(Ranges, EveryRectangleOfShortSequences) {
  long long n = 0;
  const auto check = [&](Lengths lengths, const Rule& rule, Range tokens, Range keys) {
    int n_visible = 0, n_biased = 0, n_all = 0;
    for (int i = tokens.begin; i < tokens.end; ++i)
      for (int j = keys.begin; j < keys.end; ++j) {
        const int dist = i + lengths.kv_len - lengths.q_len - j;
        const bool seen = j < lengths.kv_len && rule.sees(dist);
        n_all += 1, n_visible += seen, n_biased += seen && rule.biases(dist);
      }
    const TileClass expected = n_visible == 0 ? TileClass{} : TileClass{false, n_visible < n_all, n_biased > 0};
    ASSERT_EQ(classify(tokens, keys, lengths, rule.visible(), rule.band()), expected)
        << rule << " q_len " << lengths.q_len << " kv_len " << lengths.kv_len << " tokens " << tokens.begin << "..."
        << tokens.end << " keys " << keys.begin << "..." << keys.end;
    ++n;
  };
  for (int q_len = 0; q_len <= 5; ++q_len)
    for (int kv_len = 0; kv_len <= 9; ++kv_len)
      for (bool causal : {true, false})
        for (int left : {-1, 0, 1, 2, 3, 7, 20})
          for (int right : {-1, 0, 1, 2, 3, 7, 20})
            for (Rule rule : {Rule{}, Rule{.rel_extent = 1}, Rule{.rel_extent = 3}, Rule{.rel_zero = 2, .rel_extent = 2},
                              Rule{.rel_zero = -2, .rel_extent = 4}, Rule{.rel_extent = 2, .edge = RelEdge::kClamp}}) {
              rule.causal = causal, rule.window_left = left, rule.window_right = right;
              for (int t0 = 0; t0 < q_len; ++t0)
                for (int t1 = t0; t1 <= q_len; ++t1)
                  for (int k0 = 0; k0 <= kv_len; ++k0)
                    for (int k1 = k0; k1 <= kv_len + 2; ++k1) {
                      check({q_len, kv_len}, rule, {t0, t1}, {k0, k1});
                      if (testing::Test::HasFatalFailure()) return;
                    }
            }
  print_count(n);
}

// visible_keys: the first and last key that some token sees. full_keys: the keys that every token sees.
TEST(Ranges, VisibleAndFullKeysOfEveryRunOfTokens) {
  long long n = 0;
  for (int q_len = 1; q_len <= 9; ++q_len)
    for (int kv_len = 0; kv_len <= 14; ++kv_len)
      for (bool causal : {true, false})
        for (int left = -1; left <= 15; ++left)
          for (int right : {-1, 0, 1, 4, 15})
            for (int t0 = 0; t0 < q_len; ++t0)
              for (int t1 = t0 + 1; t1 <= q_len; ++t1, ++n) {
                const Rule rule{.causal = causal, .window_left = left, .window_right = right};
                Range some{0, 0}, every{0, 0};
                for (int j = 0; j < kv_len; ++j) {
                  int n_seeing = 0;
                  for (int i = t0; i < t1; ++i) n_seeing += rule.sees(i + kv_len - q_len - j);
                  if (n_seeing > 0) some = {some.empty() ? j : some.begin, j + 1};
                  if (n_seeing == t1 - t0) every = {every.empty() ? j : every.begin, j + 1};
                }
                const Range visible = visible_keys({t0, t1}, {q_len, kv_len}, rule.visible());
                const Range full = full_keys({t0, t1}, {q_len, kv_len}, rule.visible());
                ASSERT_TRUE(visible == some || (visible.empty() && some.empty())) << rule << " " << q_len << " " << kv_len;
                ASSERT_TRUE(full == every || (full.empty() && every.empty())) << rule << " " << q_len << " " << kv_len;
              }
  for (Range tokens : {Range{0, 0}, Range{3, 3}}) EXPECT_TRUE(visible_keys(tokens, {5, 9}, {0, kFar}).empty());
  print_count(n);
}

class TiledRanges : public testing::TestWithParam<std::tuple<int, int>> {};

std::string tile_names(const testing::TestParamInfo<std::tuple<int, int>>& test) {
  std::string name = "q";
  return name.append(std::to_string(std::get<0>(test.param))).append("_kv").append(std::to_string(std::get<1>(test.param)));
}

INSTANTIATE_TEST_SUITE_P(AllTiles, TiledRanges, testing::Combine(testing::Values(16, 64, 128), testing::Values(32, 64, 128)),
                         tile_names);

// All lengths x all windows x all groups; the bands take turns, so that every band meets every window.
TEST_P(TiledRanges, SkippedMaskedAndBiasedAreExact) {
  const auto [tile_rows, tile_keys] = GetParam();
  const std::vector<Rule> windows = reference::windows(tile_keys), bands = reference::bands(tile_keys);
  std::vector<reference::DistanceCounts> counts;
  for (const Rule& window : windows)
    for (const Rule& band : bands) counts.emplace_back(reference::join(window, band));
  reference::PairCounts pairs;
  long long n = 0;
  std::size_t turn = 0;
  for (const int q_len : reference::q_lens(tile_rows))
    for (int kv_len = 0; kv_len <= reference::kMaxKvLen; kv_len += reference::kKvLenStep)
      for (std::size_t w = 0; w < windows.size(); ++w) {
        const std::size_t b = turn++ % bands.size();
        const Rule rule = reference::join(windows[w], bands[b]);
        const Range visible = rule.visible(), band = rule.band();
        const Lengths lengths{q_len, kv_len};
        pairs.fill(counts[w * bands.size() + b], lengths, tile_keys);
        for (const int group : {1, 2, 3, 4, 8}) {
          const int n_rows = q_len * group, n_row_tiles = row_tiles(q_len, group, tile_rows);
          ASSERT_EQ(n_row_tiles, (n_rows + tile_rows - 1) / tile_rows);
          for (int row_tile = 0; row_tile < n_row_tiles; ++row_tile) {
            const int first_row = row_tile * tile_rows, last_row = std::min(first_row + tile_rows, n_rows) - 1;
            const int first_token = first_row / group, end_token = last_row / group + 1;
            const Range tokens = row_tokens({first_row, last_row + 1}, group);
            ASSERT_EQ(tokens, (Range{first_token, end_token}));
            const Range tiles = key_tiles(visible_keys(tokens, lengths, visible), tile_keys);
            for (int tile = 0; tile < pairs.n_tiles(); ++tile, ++n) {
              const int n_visible = pairs.visible(first_token, end_token, tile);
              TileClass expected;
              if (n_visible > 0)
                expected = {false, n_visible < tile_keys * (end_token - first_token),
                            pairs.biased(first_token, end_token, tile) > 0};
              const TileClass found = classify(tokens, {tile * tile_keys, (tile + 1) * tile_keys}, lengths, visible, band);
              ASSERT_TRUE(found == expected && tiles.contains(tile) == (n_visible > 0))
                  << rule << " q_len " << q_len << " kv_len " << kv_len << " group " << group << " row tile " << row_tile
                  << " key tile " << tile << ": skipped " << found.skipped << " masked " << found.masked << " biased "
                  << found.biased << " visited " << tiles.contains(tile) << ", visible pairs " << n_visible;
            }
            ASSERT_TRUE(tiles.empty() || tiles.end <= pairs.n_tiles());
          }
        }
      }
  print_count(n);
}

TEST(Rows, PackingRoundTrips) {
  long long n = 0;
  for (int group : {1, 2, 3, 4, 8})
    for (int token = 0; token < 300; ++token)
      for (int head = 0; head < group; ++head, ++n) {
        const int row = packed_row(token, head, group);
        ASSERT_EQ(row_token(row, group), token);
        for (int kv_head : {0, 1, 7}) ASSERT_EQ(row_head(row, group, kv_head), kv_head * group + head);
      }
  print_count(n);
}

TEST(Pages, EntriesAndSlotsOfEveryKeyRange) {
  long long n = 0;
  for (int page : {1, 13, 16, 64, 100})
    for (int begin = 0; begin <= 210; ++begin) {
      ASSERT_EQ(page_entry(begin, page) * page + page_slot(begin, page), begin);
      ASSERT_TRUE(0 <= page_slot(begin, page) && page_slot(begin, page) < page);
      for (int end = begin; end <= 230; ++end, ++n) {
        Range needed{0, 0};  // entries in which some key of [begin, end) lies
        for (int key = begin; key < end; ++key) needed = {needed.empty() ? key / page : needed.begin, key / page + 1};
        ASSERT_EQ(page_entries({begin, end}, page), needed) << page << " " << begin << " " << end;
      }
    }
  for (int wild : {-1, 7, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()})
    EXPECT_FALSE(page_in_cache(wild, 7));
  EXPECT_TRUE(page_in_cache(0, 7) && page_in_cache(6, 7));
  EXPECT_FALSE(page_in_cache(0, 0));
  EXPECT_TRUE(page_in_cache(std::numeric_limits<int>::max(), std::int64_t{1} << 31));
  print_count(n);
}

// Lengths just below 2^30. Evaluated by the compiler, which refuses signed overflow.
namespace at_the_limit {
constexpr int kLast = kMaxLength - 1;
constexpr Range kCausal = visible_distances(true, -1, -1), kAll = visible_distances(false, -1, -1);
constexpr Range kWindow = visible_distances(true, 511, -1), kBand = band_distances(0, 1024, RelEdge::kZero);

static_assert(q_pos(kLast - 1, {kLast, kLast}) == kLast - 1);
static_assert(q_pos(0, {kLast, 0}) == -kLast);
static_assert(visible_keys({0, kLast}, {kLast, kLast}, kCausal) == Range{0, kLast});
static_assert(visible_keys({0, kLast}, {kLast, kLast}, kAll) == Range{0, kLast});
static_assert(visible_keys({0, 1}, {kLast, kLast}, kCausal) == Range{0, 1});
static_assert(visible_keys({0, 1}, {1, kLast}, kWindow) == Range{kLast - 512, kLast});
static_assert(visible_keys({0, 1}, {kLast, 0}, kAll).empty());
static_assert(visible_keys({kLast - 1, kLast}, {kLast, 1}, kCausal) == Range{0, 1});
static_assert(visible_keys({kLast - 2, kLast - 1}, {kLast, 1}, kCausal).empty());
static_assert(full_keys({0, kLast}, {kLast, kLast}, kAll) == Range{0, kLast});
TEST(Ranges, TilesInsideARangeAndKeysInsideATile) {
  for (const int tile_keys : {1, 8, 64})
    for (int begin = 0; begin < 200; begin += 3)
      for (int end = begin; end < 200; ++end)
        for (int tile = 0; tile * tile_keys < 220; ++tile) {
          const Range keys{begin, end}, part = keys_in_tile(keys, tile, tile_keys);
          int n_inside = 0;
          for (int i = 0; i < tile_keys; ++i) {
            const bool inside = keys.contains(tile * tile_keys + i);
            ASSERT_EQ(part.contains(i), inside);
            n_inside += inside;
          }
          ASSERT_EQ(part.size(), n_inside);
          ASSERT_EQ(inner_tiles(keys, tile_keys).contains(tile), n_inside == tile_keys);
        }
}

static_assert(key_tiles({0, kLast}, 128) == Range{0, kMaxLength / 128});
static_assert(key_tiles({kLast - 1, kLast}, 1) == Range{kLast - 1, kLast});
static_assert(page_entries({kLast - 1, kLast}, 1) == Range{kLast - 1, kLast});
static_assert(page_entries({0, kLast}, 16) == Range{0, kMaxLength / 16});
static_assert(row_tiles(kLast, 8, 128) == kMaxLength / 16);
static_assert(classify({0, 1}, {kLast - 64, kLast}, {1, kLast}, kCausal, kBand) == TileClass{false, false, true});
static_assert(classify({0, 1}, {0, 64}, {1, kLast}, kCausal, kBand) == TileClass{false, false, false});
static_assert(classify({0, 1}, {0, 64}, {1, kLast}, kWindow, kBand) == TileClass{});
static_assert(classify({0, 1}, {kLast - 1024, kLast - 960}, {1, kLast}, kCausal, kBand) == TileClass{false, false, true});
static_assert(classify({0, 1}, {kLast - 1088, kLast - 1024}, {1, kLast}, kCausal, kBand) == TileClass{false, false, false});
static_assert(classify({0, 64}, {kLast - 63, kLast + 1}, {kLast, kLast}, kAll, kAll) == TileClass{false, true, true});
static_assert(bias_index(-kLast, kLast, kMaxLength) == 0 && bias_index(kLast, kLast, std::int64_t{1} << 31) == 2ll * kLast);
}  // namespace at_the_limit

}  // namespace
}  // namespace flashrel
