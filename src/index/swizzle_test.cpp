#include "index/swizzle.hpp"

#include <gtest/gtest.h>

#include <set>

namespace flashrel {
namespace {

TEST(Swizzle, EveryChunkHasItsOwnPlace) {
  for (int row_elems : {64, 128, 256}) {
    std::set<int> places;
    for (int row = 0; row < 64; ++row)
      for (int chunk = 0; chunk < row_elems / kChunkElems; ++chunk) {
        const int place = tile_offset_bytes(row, chunk, row_elems);
        ASSERT_EQ(place % kChunkBytes, 0);
        ASSERT_LT(place, 64 * row_elems * 2);
        ASSERT_EQ(place / (row_elems * 2), row);
        places.insert(place);
      }
    EXPECT_EQ(places.size(), static_cast<std::size_t>(64 * row_elems / kChunkElems));
  }
}

TEST(Swizzle, EightRowsOfOneColumnTouchAllBanks) {
  for (int row_elems : {64, 128, 256})
    for (int first = 0; first < 16; ++first)
      for (int chunk = 0; chunk < row_elems / kChunkElems; ++chunk) {
        std::set<int> banks;
        for (int row = first; row < first + 8; ++row) banks.insert(tile_offset_bytes(row, chunk, row_elems) % 128);
        ASSERT_EQ(banks.size(), 8u);
      }
}

TEST(Swizzle, FlippingWalksAlongARow) {
  for (int row_elems : {64, 128, 256})
    for (int row = 0; row < 64; ++row)
      for (int chunk = 0; chunk < 2; ++chunk)
        for (int delta = 0; delta < row_elems / kChunkElems; delta += 2)
          ASSERT_EQ(flip_chunk(static_cast<unsigned>(tile_offset_bytes(row, chunk, row_elems)), delta),
                    static_cast<unsigned>(tile_offset_bytes(row, chunk + delta, row_elems)));
}

}  // namespace
}  // namespace flashrel
