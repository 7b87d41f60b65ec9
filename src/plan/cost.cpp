#include "plan/cost.hpp"

#include <algorithm>

#include "index/ranges.hpp"

namespace flashrel {
namespace {

// Visible (row token, key) pairs of one sequence.
double visible_pairs(Lengths lengths, Range visible) {
  double pairs = 0;
  // Long prefills are sampled: the count is a smooth function of the row.
  const int step = std::max(1, lengths.q_len / 4096);
  for (int i = 0; i < lengths.q_len; i += step)
    pairs += static_cast<double>(visible_keys({i, i + 1}, lengths, visible).size()) * std::min(step, lengths.q_len - i);
  return pairs;
}

}  // namespace

Cost estimate_cost(const Problem& p, const Device& device) {
  if (p.n_seqs == 0 || p.n_tokens == 0 || p.max_seqlen_k == 0) return {};
  // The bounds describe the largest sequence; tokens are shared out evenly.
  const Lengths lengths{static_cast<int>(std::min(p.max_seqlen_q, std::max<std::int64_t>(1, p.n_tokens / p.n_seqs))),
                        static_cast<int>(p.max_seqlen_k)};
  const double pairs = visible_pairs(lengths, p.visible) * p.n_seqs;
  const double keys = static_cast<double>(visible_keys({0, lengths.q_len}, lengths, p.visible).size()) * p.n_seqs;
  const auto element = static_cast<double>(size_of(p.dtype));
  const auto rows = static_cast<double>(p.n_tokens) * p.n_q_heads;

  Cost cost;
  cost.flops = 4.0 * p.head_dim * pairs * p.n_q_heads;
  cost.bytes = 2.0 * keys * p.n_kv_heads * p.head_dim * element + 2.0 * rows * p.head_dim * element;
  if (p.has_lse) cost.bytes += rows * sizeof(float);
  if (p.bias == BiasMode::kLogits) {
    const double per_row = static_cast<double>(std::min<std::int64_t>(p.rel_extent, p.max_seqlen_k));
    const double tables = p.strides.rel_logits_token == 0 ? p.n_q_heads : rows;
    cost.bytes += tables * per_row * static_cast<double>(size_of(p.rel_logits_dtype));
  }
  if (p.bias == BiasMode::kFused) cost.bytes += (rows + static_cast<double>(p.rel_extent)) * p.d_rel * element;
  if (device.read_gb_per_s > 0 && device.matrix_tflop_per_s > 0)
    cost.bound_us = std::max(cost.bytes / (device.read_gb_per_s * 1e3), cost.flops / (device.matrix_tflop_per_s * 1e6));
  return cost;
}

double predict_us(const CostModel& model, double flops, double bytes, const Device& device) {
  const double bytes_per_us = model.read_share * device.read_gb_per_s * 1e3;
  const double flops_per_us = model.matrix_share * device.matrix_tflop_per_s * 1e6;
  if (bytes_per_us <= 0 || flops_per_us <= 0) return 0;
  return model.fixed_us + std::max(bytes / bytes_per_us, flops / flops_per_us);
}

}  // namespace flashrel
