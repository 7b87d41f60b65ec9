// Small matrix products in registers, written once for every vector instruction set.
// Included by isa/<name>.cpp only, after the unit's `Simd`; everything has internal linkage.
//
//   C[m, n] (+)= A[m, k] * B[k, n]      A row-major; B in panels of 16 columns (isa.hpp); C float, row-major
//
// n is a multiple of 32, k of 32 (float: of 1). Rows of A and C up to the next multiple of 4 must be readable and writable.
#pragma once

#include "backend/cpu/isa.hpp"

namespace flashrel::cpu {
namespace {

// Bias that is added to scores in the matrix unit (isa.hpp, direct_bias): 16 rows of rel terms x 32 columns of packed rel_proj.
template <class Element>
struct DirectBias {
  const Element* rel = nullptr;  // [row][term][token pair][32]
  long rel_ld = 0;
  const Element* proj[2] = {};  // column 0 of the first and of the second 16 rows' first token
  long proj_ld = 0;
  int n_pairs = 0, n_terms = 0;  // token pairs of 16 rows; 1 or 2 terms
};

// One product's operands. Strides in elements; b_panel: distance of two panels of B.
template <class Element>
struct Gemm {
  int m = 0, n = 0, k = 0;
  const Element* a = nullptr;
  long lda = 0;
  const Element* b = nullptr;
  long b_panel = 0;
  float* c = nullptr;
  long ldc = 0;
  bool accumulate = false;
  DirectBias<Element> bias;  // matrix units only; n_pairs = 0: none
};

// kRows x (kPanels * 16) results stay in registers over the whole k loop.
template <class Dot, int kRows, int kPanels>
inline void gemm_block(const Gemm<typename Dot::Element>& g, int row, int column) {
  using V = typename Simd::V;
  constexpr int kVectors = kPanel / Simd::kLanes;
  V sum[kRows][kPanels * kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kPanels * kVectors; ++v)
      sum[r][v] = g.accumulate ? Simd::load(g.c + (row + r) * g.ldc + column + v * Simd::kLanes) : Simd::zero();
  const auto* a = g.a + row * g.lda;
  const auto* b = g.b + (column / kPanel) * g.b_panel;
  for (int k = 0; k < g.k; k += Dot::kDepth) {
    typename Dot::Operand column_k[kPanels * kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kPanels * kVectors; ++v)
      column_k[v] = Dot::load(b + (v / kVectors) * g.b_panel + (v % kVectors) * Simd::kLanes * Dot::kDepth);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Dot::Operand x = Dot::broadcast(a + r * g.lda + k);
#pragma GCC unroll 4
      for (int v = 0; v < kPanels * kVectors; ++v) sum[r][v] = Dot::multiply_add(x, column_k[v], sum[r][v]);
    }
    b += kPanel * Dot::kDepth;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kPanels * kVectors; ++v) Simd::store(g.c + (row + r) * g.ldc + column + v * Simd::kLanes, sum[r][v]);
}

// Dot: how one vector of B and one scalar (or bf16 pair) of A are multiplied into a vector of sums.
template <class Dot>
struct VectorMatrix {
  using Element = typename Dot::Element;
  static constexpr int kRowBlock = Simd::kRowBlock;

  static void gemm(const Gemm<Element>& g) {
    constexpr int kColumns = Simd::kGemmPanels * kPanel;
    for (int column = 0; column < g.n; column += kColumns) {
      int row = 0;
      for (; row + Simd::kGemmRows <= g.m; row += Simd::kGemmRows)
        gemm_block<Dot, Simd::kGemmRows, Simd::kGemmPanels>(g, row, column);
      if constexpr (Simd::kGemmRows > 8)
        for (; row + 8 <= g.m; row += 8) gemm_block<Dot, 8, Simd::kGemmPanels>(g, row, column);
      if constexpr (Simd::kGemmRows > 4)
        for (; row + 2 < g.m; row += 4) gemm_block<Dot, 4, Simd::kGemmPanels>(g, row, column);
      for (; row < g.m; row += 2) gemm_block<Dot, 2, Simd::kGemmPanels>(g, row, column);
    }
  }
};

struct FloatDot {
  using Element = float;
  using Operand = typename Simd::V;
  static constexpr int kDepth = 1;
  static Operand load(const float* p) { return Simd::load(p); }
  static Operand broadcast(const float* p) { return Simd::set1(*p); }
  static Operand multiply_add(Operand a, Operand b, Operand c) { return Simd::fma(a, b, c); }
};

using FloatMatrix = VectorMatrix<FloatDot>;

}  // namespace
}  // namespace flashrel::cpu
