// Register fragments of mma.sync.m16n8k16 (16-bit inputs, float32 accumulators) and of ldmatrix.x4 that feeds them:
// which lane and register hold which matrix cell. Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include "base/host_device.hpp"

namespace flashrel {

struct Cell {
  int row = 0, col = 0;
  constexpr bool operator==(const Cell&) const = default;
};

// Accumulator C and D, 16 x 8: register 0...3.
FLASHREL_HD constexpr Cell mma_c_cell(int lane, int reg) { return {lane / 4 + 8 * (reg / 2), lane % 4 * 2 + reg % 2}; }

// Operand A, 16 x 16 (rows x k): register 0...3, each two neighbours in k (half 0, 1).
FLASHREL_HD constexpr Cell mma_a_cell(int lane, int reg, int half) {
  return {lane / 4 + 8 * (reg % 2), lane % 4 * 2 + half + 8 * (reg / 2)};
}

// Operand B, 16 x 8 (k x columns): register 0, 1, each two neighbours in k.
FLASHREL_HD constexpr Cell mma_b_cell(int lane, int reg, int half) { return {lane % 4 * 2 + half + 8 * reg, lane / 4}; }

// ldmatrix.x4 reads four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8 and receives, of matrix m,
// row l / 4, columns l % 4 * 2 + {0, 1} in register m (transposed: column l / 4, rows l % 4 * 2 + {0, 1}).
//
// Down then across: matrices (0,0) (8,0) (0,8) (8,8) of a 16 x 16 block. Plain it loads A; transposed, from V[key][dim],
// it loads B for two blocks of 8 dims: registers {0, 1} and {2, 3}.
FLASHREL_HD constexpr Cell ldmatrix_down_cell(int lane) { return {lane % 16, lane / 16 * 8}; }

// Across then down: matrices (0,0) (0,8) (8,0) (8,8). Plain, from K[key][dim], it loads B for two blocks of 8 keys.
FLASHREL_HD constexpr Cell ldmatrix_across_cell(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8}; }

}  // namespace flashrel
