// The public merge against the formula in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "combine/combine.hpp"
#include "index/softmax_state.hpp"

namespace flashrel {
namespace {

constexpr int kRows = 70, kHeads = 3, kDim = 37;  // more rows than one task takes; no multiple of anything
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Merge {
  int n_parts;
  MergeProblem p;
  std::vector<float> parts, lse_in, out, lse_out;

  explicit Merge(int n) : n_parts(n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    p.n_parts = n;
    p.n_rows = kRows;
    p.n_heads = kHeads;
    p.head_dim = kDim;
    // Parts innermost but for head_dim; lse with the heads outermost.
    p.part_stride = kDim;
    p.part_head = n * kDim;
    p.part_row = p.part_head * kHeads;
    p.part_lse_stride = kRows;
    p.part_lse_row = 1;
    p.part_lse_head = static_cast<std::int64_t>(kRows) * n;
    p.out_head = kDim + 2;
    p.out_row = p.out_head * kHeads;
    p.lse_row = 1;
    p.lse_head = kRows;
    parts.resize(static_cast<std::size_t>(kRows) * kHeads * n * kDim);
    lse_in.resize(static_cast<std::size_t>(kRows) * kHeads * n);
    for (float& x : parts) x = normal(random);
    for (float& x : lse_in) x = 20 * normal(random);
    out.assign(static_cast<std::size_t>(p.out_row) * kRows, 77.0f);
    lse_out.assign(static_cast<std::size_t>(kRows) * kHeads, 77.0f);
  }

  float& part_lse(int part, int row, int head) {
    return lse_in[static_cast<std::size_t>(part * p.part_lse_stride + row + head * p.part_lse_head)];
  }
  float& part(int index, int row, int head, int d) {
    return parts[static_cast<std::size_t>(index * p.part_stride + row * p.part_row + head * p.part_head + d)];
  }
  void run() { ASSERT_TRUE(merge_cpu(p, {parts.data(), lse_in.data(), out.data(), lse_out.data()}).ok()); }

  void expect_formula() {
    for (int row = 0; row < kRows; ++row)
      for (int head = 0; head < kHeads; ++head) {
        double top = kEmptyLse, sum = 0;
        for (int i = 0; i < n_parts; ++i) top = std::fmax(top, part_lse(i, row, head));
        for (int i = 0; i < n_parts; ++i) sum += std::isinf(top) ? 0 : std::exp(part_lse(i, row, head) - top);
        const float lse = lse_out[static_cast<std::size_t>(row + head * kRows)];
        if (sum == 0)
          EXPECT_EQ(lse, kEmptyLse);
        else
          EXPECT_NEAR(lse, top + std::log(sum), 1e-5);
        for (int d = 0; d < kDim + 2; ++d) {
          double want = d < kDim ? 0.0 : 77.0;
          for (int i = 0; i < n_parts && d < kDim; ++i)
            if (!std::isinf(part_lse(i, row, head)))
              want += std::exp(part_lse(i, row, head) - top) / sum * part(i, row, head, d);
          ASSERT_NEAR(out[static_cast<std::size_t>(row * p.out_row + head * p.out_head + d)], want, 2e-6)
              << "row " << row << " head " << head << " column " << d;
        }
      }
  }
};

TEST(MergeCpu, IsTheFormula) {
  for (int n_parts : {1, 2, 5}) {
    Merge merge(n_parts);
    merge.run();
    merge.expect_formula();
  }
}

TEST(MergeCpu, EmptyPartsMayHoldAnything) {
  Merge merge(4);
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < 4; ++i)
      if (row % 5 == 0 || i == row % 4) {
        merge.part_lse(i, row, 1) = kEmptyLse;
        for (int d = 0; d < kDim; ++d) merge.part(i, row, 1, d) = kNaN;
      }
  merge.run();
  merge.expect_formula();
}

TEST(MergeCpu, IsTheSameInAnyGrouping) {
  Merge all(3), first(2), last(2);
  all.run();
  for (int row = 0; row < kRows; ++row)
    for (int head = 0; head < kHeads; ++head)
      for (int i = 0; i < 2; ++i) {
        first.part_lse(i, row, head) = all.part_lse(i, row, head);
        for (int d = 0; d < kDim; ++d) first.part(i, row, head, d) = all.part(i, row, head, d);
      }
  first.run();
  for (int row = 0; row < kRows; ++row)
    for (int head = 0; head < kHeads; ++head) {
      last.part_lse(0, row, head) = first.lse_out[static_cast<std::size_t>(row + head * kRows)];
      last.part_lse(1, row, head) = all.part_lse(2, row, head);
      for (int d = 0; d < kDim; ++d) {
        last.part(0, row, head, d) = first.out[static_cast<std::size_t>(row * first.p.out_row + head * first.p.out_head + d)];
        last.part(1, row, head, d) = all.part(2, row, head, d);
      }
    }
  last.run();
  for (std::size_t i = 0; i < all.out.size(); ++i) ASSERT_NEAR(all.out[i], last.out[i], 1e-5);
}

TEST(MergeCpu, SixteenBitTypes) {
  Merge merge(2);
  merge.p.out_dtype = DType::kFloat16;
  std::vector<std::uint16_t> out(merge.out.size());
  ASSERT_TRUE(merge_cpu(merge.p, {merge.parts.data(), merge.lse_in.data(), out.data(), nullptr}).ok());
  merge.p.out_dtype = DType::kFloat32;
  merge.run();
  for (int row = 0; row < kRows; ++row)
    for (int d = 0; d < kDim; ++d) {
      const auto at = static_cast<std::size_t>(row * merge.p.out_row + d);
      ASSERT_NEAR(fp16_to_float(out[at]), merge.out[at], 2e-3);
    }
}

}  // namespace
}  // namespace flashrel
