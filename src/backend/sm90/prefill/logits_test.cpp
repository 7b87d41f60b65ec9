#include "backend/sm90/prefill/logits.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace flashrel::sm90::prefill {
namespace {

constexpr long long kZero = -1;  // filled by TMA

// One slot as TMA fills it: the entry of the row's table at every place.
std::vector<long long> fill_slot(const LogitsRing& ring, LogitsPlace place, int extent) {
  std::vector<long long> slot(static_cast<std::size_t>(ring.row_entries));
  for (int x = 0; x < ring.row_entries; ++x) {
    const long long entry = static_cast<long long>(place.start) + x;
    slot[static_cast<std::size_t>(x)] = entry >= 0 && entry < extent ? entry : kZero;
  }
  return slot;  // every row of a warp has the same
}

void check_tile(int entry_bytes, int group_log2, int first_pos, int rel_zero, int tile, int extent) {
  const LogitsRing ring = logits_ring(entry_bytes, group_log2);
  const int unit = 16 / entry_bytes;
  for (int warp = 0; warp < kConsumerWarps; ++warp) {
    const LogitsPlace place = logits_place(first_pos, rel_zero, warp, tile, extent, unit);
    ASSERT_EQ(place.start % unit, 0) << "TMA faults";
    const auto slot = fill_slot(ring, place, extent);
    for (int row = 0; row < kWarpRows; ++row) {
      const int token = warp_row(warp, row, group_log2) >> group_log2;
      for (int column = 0; column < kMaxTileKeys; ++column) {
        const int at = logits_entry(place.shift, row, column, group_log2);
        ASSERT_GE(at, 0);
        ASSERT_LT(at, ring.row_entries);
        const long long index =
            static_cast<long long>(first_pos) + rel_zero + token - (static_cast<long long>(tile) * kMaxTileKeys + column);
        ASSERT_EQ(slot[static_cast<std::size_t>(at)], index >= 0 && index < extent ? index : kZero)
            << entry_bytes << " bytes, group 2^" << group_log2 << ", extent " << extent << ", first_pos " << first_pos
            << ", rel_zero " << rel_zero << ", tile " << tile << ", warp " << warp << ", row " << row << ", column " << column;
      }
    }
  }
}

TEST(Sm90Logits, EveryScoreFindsTheEntryOfItsDistance) {
  for (int entry_bytes : {2, 4})
    for (int group_log2 : {0, 1, 2, 3, 4})
      for (int extent : {1, 8, 127, 128, 129, 1024})
        for (int first_pos : {-700, -200, -1, 0, 3, 127, 128, 255, 641, 1152, 1300, 5000})
          for (int tile : {0, 1, 3}) check_tile(entry_bytes, group_log2, first_pos, tile * 5, tile, extent);
}

TEST(Sm90Logits, FarFromTheTable) {
  for (int rel_zero : {1 - kMaxRelZero, 0, kMaxRelZero - 1})
    for (int first_pos : {1 - kMaxLength, 0, kMaxLength - 1})
      for (int tile : {0, 5, kMaxLength / kMaxTileKeys - 1}) {
        if (first_pos < 0 && tile > 5) continue;  // keys end where positions do
        check_tile(2, 3, first_pos, rel_zero, tile, kMaxLength - 1);
        check_tile(4, 0, first_pos, rel_zero, tile, 1);
      }
}

// The kernel computes a warp's shift once a job.
TEST(Sm90Logits, TheShiftIsTheSameForAllTiles) {
  for (int unit : {4, 8})
    for (int first_pos = -20; first_pos < 20; ++first_pos)
      for (int tile : {0, 1, 77})
        EXPECT_EQ(logits_place(first_pos, 6, 3, tile, 64, unit).shift, logits_place(first_pos, 6, 3, 0, 64, unit).shift);
}

TEST(Sm90Logits, SlotsFitAndBoxesStartWhereTmaMayWrite) {
  for (int entry_bytes : {2, 4})
    for (int group_log2 : {0, 1, 2, 3, 4}) {
      const LogitsRing ring = logits_ring(entry_bytes, group_log2);
      EXPECT_LE(ring.n_slots * ring.slot_bytes, kLogitsBytes);
      EXPECT_GE(ring.n_slots, kConsumerWarps / 2) << "a warpgroup reads four at once";
      EXPECT_LE(ring.row_entries, 256) << "the largest box";
      EXPECT_EQ(ring.slot_bytes % 128, 0);
      if (group_log2 < 4) {
        EXPECT_EQ((ring.row_bytes << group_log2) % 128, 0);
      }
    }
}

// ldmatrix reads 16 bytes of eight rows at once: they must lie in different groups of four banks.
TEST(Sm90Logits, RowsOfSixteenBitEntriesDoNotShareBanks) {
  for (int group_log2 : {0, 1, 2, 3, 4})
    for (int half : {0, 8}) {
      unsigned banks = 0;
      for (int row = half; row < half + 8; ++row)
        banks |= 1u << (row * logits_ring(2, group_log2).row_bytes + (row >> group_log2) * 16) / 16 % 8;
      EXPECT_EQ(banks, 0xffu) << "group 2^" << group_log2;
    }
}

}  // namespace
}  // namespace flashrel::sm90::prefill
