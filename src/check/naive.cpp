#include "check/naive.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "index/pages.hpp"
#include "index/ranges.hpp"
#include "index/softmax_state.hpp"

namespace flashrel::check {
namespace {

float round_to(DType dtype, float value) {
  if (dtype == DType::kBFloat16) return bf16_to_float(float_to_bf16(value));
  if (dtype == DType::kFloat16) return fp16_to_float(float_to_fp16(value));
  return value;
}

float bias_of(const Problem& p, const Tensors& t, const RowPlace& row, int dist) {
  if (p.bias == BiasMode::kNone || !p.band.contains(dist)) return 0;
  const std::int64_t index = bias_index(dist, p.rel_zero, p.rel_extent);
  const Strides& s = p.strides;
  if (p.bias == BiasMode::kLogits)
    return load_float(t.rel_logits, p.rel_logits_dtype, row.token * s.rel_logits_token + row.head * s.rel_logits_head + index);
  float sum = 0;
  for (int e = 0; e < p.d_rel; ++e)
    sum += load_float(t.rel, p.dtype, row.token * s.rel_token + row.head * s.rel_head + e) *
           load_float(t.rel_proj, p.dtype, e * s.rel_proj_row + index);
  return p.has_rel_scale ? t.rel_scale[row.token * s.rel_scale_token] * sum : sum;
}

}  // namespace

void naive_row(const Problem& p, const Tensors& t, const RowPlace& row, float* out, float* lse) {
  const Strides& s = p.strides;
  const int kv_head = row.head / p.group();
  const Range keys = visible_keys({row.token_in_seq, row.token_in_seq + 1}, row.lengths, p.visible);
  const auto page_of = [&](int key) -> std::int64_t {
    return t.block_table[row.seq * s.table_seq + page_entry(key, p.page_size) * s.table_page];
  };
  const std::int64_t q_row = row.token * s.q_token + row.head * s.q_head;

  std::vector<float> score(static_cast<std::size_t>(keys.size()));
  float max_score = kEmptyLse;
  for (int key = keys.begin; key < keys.end; ++key) {
    const std::int64_t k_row = page_of(key) * s.k_page + page_slot(key, p.page_size) * s.k_slot + kv_head * s.k_head;
    float dot = 0;
    for (int d = 0; d < p.head_dim; ++d) dot += load_float(t.q, p.dtype, q_row + d) * load_float(t.k_cache, p.dtype, k_row + d);
    float& value = score[static_cast<std::size_t>(key - keys.begin)];
    value = static_cast<float>(p.softmax_scale) * dot + bias_of(p, t, row, q_pos(row.token_in_seq, row.lengths) - key);
    max_score = std::fmax(max_score, value);
  }

  float sum = 0;
  std::fill_n(out, p.head_dim, 0.0f);
  for (int key = keys.begin; key < keys.end; ++key) {
    const std::int64_t v_row = page_of(key) * s.v_page + page_slot(key, p.page_size) * s.v_slot + kv_head * s.v_head;
    const float weight = std::exp(score[static_cast<std::size_t>(key - keys.begin)] - max_score);
    const float rounded = round_to(p.dtype, weight);
    sum += weight;
    for (int d = 0; d < p.head_dim; ++d) out[d] += rounded * load_float(t.v_cache, p.dtype, v_row + d);
  }
  *lse = merged_lse(max_score, sum);
  if (sum > 0)
    for (int d = 0; d < p.head_dim; ++d) out[d] = round_to(p.dtype, out[d] / sum);
}

}  // namespace flashrel::check
