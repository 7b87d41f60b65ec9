#include "core/definition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/pages.hpp"
#include "index/ranges.hpp"

namespace flashrel {
namespace {

// L[token, head, index] in float64.
double bias_entry(const Problem& p, const Tensors& t, std::int64_t token, int head, std::int64_t index) {
  if (p.bias == BiasMode::kLogits) {
    const std::int64_t row = token * p.strides.rel_logits_token + head * p.strides.rel_logits_head;
    return load_float(t.rel_logits, p.rel_logits_dtype, row + index);
  }
  double sum = 0;
  for (int e = 0; e < p.d_rel; ++e) {
    const double r = load_float(t.rel, p.dtype, token * p.strides.rel_token + head * p.strides.rel_head + e);
    sum += r * load_float(t.rel_proj, p.dtype, e * p.strides.rel_proj_row + index);
  }
  return p.has_rel_scale ? t.rel_scale[token * p.strides.rel_scale_token] * sum : sum;
}

}  // namespace

void define_row(const Problem& p, const Tensors& t, const RowPlace& row, double* out, double* lse) {
  const Strides& s = p.strides;
  const int kv_head = row.head / p.group();
  const Range keys = visible_keys({row.token_in_seq, row.token_in_seq + 1}, row.lengths, p.visible);
  const auto page_of = [&](int key) -> std::int64_t {
    return t.block_table[row.seq * s.table_seq + page_entry(key, p.page_size) * s.table_page];
  };
  const std::int64_t q_row = row.token * s.q_token + row.head * s.q_head;

  std::vector<double> score(static_cast<std::size_t>(keys.size()));
  double max_score = -std::numeric_limits<double>::infinity();
  for (int key = keys.begin; key < keys.end; ++key) {
    const std::int64_t k_row = page_of(key) * s.k_page + page_slot(key, p.page_size) * s.k_slot + kv_head * s.k_head;
    double dot = 0;
    for (int d = 0; d < p.head_dim; ++d)
      dot += static_cast<double>(load_float(t.q, p.dtype, q_row + d)) * load_float(t.k_cache, p.dtype, k_row + d);
    double value = p.softmax_scale * dot;
    const int dist = q_pos(row.token_in_seq, row.lengths) - key;
    if (p.bias != BiasMode::kNone && p.band.contains(dist))
      value += bias_entry(p, t, row.token, row.head, bias_index(dist, p.rel_zero, p.rel_extent));
    score[static_cast<std::size_t>(key - keys.begin)] = value;
    max_score = std::fmax(max_score, value);
  }

  double sum = 0;
  for (double& x : score) sum += x = std::exp(x - max_score);
  *lse = keys.empty() ? -std::numeric_limits<double>::infinity() : max_score + std::log(sum);
  std::fill_n(out, p.head_dim, 0.0);
  for (int key = keys.begin; key < keys.end; ++key) {
    const std::int64_t v_row = page_of(key) * s.v_page + page_slot(key, p.page_size) * s.v_slot + kv_head * s.v_head;
    const double weight = score[static_cast<std::size_t>(key - keys.begin)] / sum;
    for (int d = 0; d < p.head_dim; ++d) out[d] += weight * load_float(t.v_cache, p.dtype, v_row + d);
  }
}

Truth define(const Problem& p, const Tensors& t) {
  Truth truth;
  truth.out.assign(static_cast<std::size_t>(p.n_tokens * p.n_q_heads * p.head_dim), 0.0);
  truth.lse.assign(static_cast<std::size_t>(p.n_tokens * p.n_q_heads), 0.0);
  truth.n_rows = p.n_seqs > 0 ? t.cu_seqlens_q[p.n_seqs * p.strides.cu_q_seq] : 0;
  for (int seq = 0; seq < p.n_seqs; ++seq) {
    const std::int64_t first = t.cu_seqlens_q[seq * p.strides.cu_q_seq];
    const Lengths lengths{static_cast<int>(t.cu_seqlens_q[(seq + 1) * p.strides.cu_q_seq] - first),
                          t.cache_seqlens[seq * p.strides.kv_len_seq]};
    for (int i = 0; i < lengths.q_len; ++i)
      for (int head = 0; head < p.n_q_heads; ++head) {
        const std::int64_t row = (first + i) * p.n_q_heads + head;
        define_row(p, t, {seq, head, i, first + i, lengths}, &truth.out[static_cast<std::size_t>(row * p.head_dim)],
                   &truth.lse[static_cast<std::size_t>(row)]);
      }
  }
  return truth;
}

}  // namespace flashrel
