// Bias of a row block along its keys: from rel_logits, or as a product of rel and a slice of rel_proj.
// Included by isa/<name>.cpp only, through kernel.hpp; everything has internal linkage.
#pragma once

#include "backend/cpu/gemm.hpp"
#include "backend/cpu/worker.hpp"

namespace flashrel::cpu {
namespace {

// Bias of one row from rel_logits, along the keys: out[j] belongs to distance dist - j.
inline void logits_row(const KernelArgs& args, std::int64_t token, int head, int dist, int n, float* out) {
  const Problem& p = args.problem;
  const std::int64_t base = token * p.strides.rel_logits_token + head * p.strides.rel_logits_head;
  const auto* data =
      static_cast<const std::byte*>(args.tensors.rel_logits) + base * static_cast<std::int64_t>(size_of(p.rel_logits_dtype));
  for (int j = 0; j < n;) {
    const std::int64_t last = bias_index(std::int64_t{dist} - j - (Simd::kLanes - 1), p.rel_zero, p.rel_extent);
    const std::int64_t first = bias_index(std::int64_t{dist} - j, p.rel_zero, p.rel_extent);
    if (j + Simd::kLanes <= n && first - last == Simd::kLanes - 1 && p.band.contains(dist - j) &&
        p.band.contains(dist - j - (Simd::kLanes - 1))) {
      Simd::V x = Simd::zero();
      if (p.rel_logits_dtype == DType::kFloat32) x = Simd::load_unaligned(reinterpret_cast<const float*>(data) + last);
      if (p.rel_logits_dtype == DType::kBFloat16) x = Simd::load_bf16(reinterpret_cast<const std::uint16_t*>(data) + last);
      if (p.rel_logits_dtype == DType::kFloat16) x = Simd::load_fp16(reinterpret_cast<const std::uint16_t*>(data) + last);
      Simd::store_unaligned(out + j, Simd::reverse(x));
      j += Simd::kLanes;
    } else {
      out[j] = p.band.contains(dist - j) ? load_float(data, p.rel_logits_dtype, first) : 0.0f;
      ++j;
    }
  }
}

// Packed rel_proj column of a distance. Far outside the band all columns are alike, so distances are brought near it.
inline int proj_shift(const PackedProj& proj, Range distances) {
  if (distances.begin >= proj.exact.end) return distances.begin - proj.exact.end;
  if (distances.end <= proj.exact.begin) return distances.end - proj.exact.begin;
  return 0;
}

template <class Matrix>
inline void bias_block(Worker<typename Matrix::Element>& w, int row, int n_rows, Range keys, const float** row_bias) {
  using Element = typename Matrix::Element;
  const KernelArgs& args = w.args;
  const Range tokens = w.tokens_of(row, n_rows);
  if (args.problem.bias == BiasMode::kLogits) {
    for (int r = 0; r < n_rows; ++r) {
      float* out = w.bias + static_cast<std::ptrdiff_t>(r) * w.layout.bias_ld;
      const int token = w.token_of(row + r);
      logits_row(args, w.first_token + token, w.head_of(row + r), q_pos(token, w.lengths) - keys.begin, keys.size(), out);
      row_bias[r] = out;
    }
    return;
  }
  // rel x (a slice of rel_proj): columns run against the distance, so each token's row is the same strip shifted by one.
  const PackedProj& proj = args.proj;
  const Range distances = rectangle_distances(tokens, keys, w.lengths);
  const int shift = proj_shift(proj, distances);
  const int begin = (proj.dist_max - (distances.end - 1 - shift)) / kPanel * kPanel;
  const int end = proj.dist_max - (distances.begin - shift) + 1;
  Gemm<Element> g;
  g.m = n_rows;
  g.n = round_up(end - begin, kKeyStep);
  g.k = w.layout.d_rel_padded;
  g.a = w.rel + static_cast<std::ptrdiff_t>(row) * g.k;
  g.lda = g.k;
  g.b_panel = static_cast<long>(g.k) * kPanel;
  g.b = static_cast<const Element*>(proj.data) + (begin / kPanel) * g.b_panel;
  g.c = w.bias;
  g.ldc = w.layout.bias_ld;
  Matrix::gemm(g);
  for (int r = 0; r < n_rows; ++r) {
    const int dist = q_pos(w.token_of(row + r), w.lengths) - keys.begin - shift;
    row_bias[r] = w.bias + static_cast<std::ptrdiff_t>(r) * w.layout.bias_ld + (proj.dist_max - dist - begin);
  }
}

}  // namespace
}  // namespace flashrel::cpu
