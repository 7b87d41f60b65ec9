#include "index/frag.hpp"

#include <gtest/gtest.h>

#include <set>

namespace flashrel {
namespace {

// What register `reg` of `lane` holds after ldmatrix.x4 with the given row addresses, as a cell of the source block.
template <class RowOf>
Cell after_ldmatrix(RowOf row_of, bool transposed, int lane, int reg, int half) {
  const int line = transposed ? lane % 4 * 2 + half : lane / 4, offset = transposed ? lane / 4 : lane % 4 * 2 + half;
  const Cell address = row_of(reg * 8 + line);
  return {address.row, address.col + offset};
}

TEST(Frag, EveryCellHasOneOwner) {
  std::set<std::pair<int, int>> a, b, c;
  for (int lane = 0; lane < 32; ++lane)
    for (int reg = 0; reg < 4; ++reg) {
      const Cell cell = mma_c_cell(lane, reg);
      ASSERT_TRUE(cell.row >= 0 && cell.row < 16 && cell.col >= 0 && cell.col < 8);
      c.insert({cell.row, cell.col});
      for (int half = 0; half < 2; ++half) {
        a.insert({mma_a_cell(lane, reg, half).row, mma_a_cell(lane, reg, half).col});
        if (reg < 2) b.insert({mma_b_cell(lane, reg, half).row, mma_b_cell(lane, reg, half).col});
      }
    }
  EXPECT_EQ(a.size(), 256u);
  EXPECT_EQ(b.size(), 128u);
  EXPECT_EQ(c.size(), 128u);
}

TEST(Frag, LdmatrixFeedsTheOperands) {
  for (int lane = 0; lane < 32; ++lane)
    for (int reg = 0; reg < 4; ++reg)
      for (int half = 0; half < 2; ++half) {
        // Q[row][dim] -> A.
        EXPECT_EQ(after_ldmatrix(ldmatrix_down_cell, false, lane, reg, half), mma_a_cell(lane, reg, half));
        // K[key][dim] -> B of key blocks 0 and 1: B's row is the dim, its column the key.
        const Cell k = after_ldmatrix(ldmatrix_across_cell, false, lane, reg, half), kb = mma_b_cell(lane, reg % 2, half);
        EXPECT_EQ(k, (Cell{kb.col + 8 * (reg / 2), kb.row}));
        // V[key][dim] transposed -> B of dim blocks 0 and 1: B's row is the key, its column the dim.
        const Cell v = after_ldmatrix(ldmatrix_down_cell, true, lane, reg, half), vb = mma_b_cell(lane, reg % 2, half);
        EXPECT_EQ(v, (Cell{vb.row, vb.col + 8 * (reg / 2)}));
      }
}

// Scores become the A operand of the next product without moving: two accumulators of 8 keys are one A of 16 keys.
TEST(Frag, AccumulatorsAreTheNextOperandA) {
  for (int lane = 0; lane < 32; ++lane)
    for (int reg = 0; reg < 4; ++reg)
      for (int half = 0; half < 2; ++half) {
        const Cell c = mma_c_cell(lane, reg % 2 * 2 + half);
        EXPECT_EQ((Cell{c.row, c.col + 8 * (reg / 2)}), mma_a_cell(lane, reg, half));
      }
}

}  // namespace
}  // namespace flashrel
