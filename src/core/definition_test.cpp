// The definition against numbers worked out by hand, and against a second formulation that shares no code with it:
// dense matrices, the rules of the contract written out, keys summed from the last to the first in long double.
#include "core/definition.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace flashrel {
namespace {

// A small float32 problem with gaps in its strides and shuffled pages.
struct Case {
  struct Rules {
    bool causal = true;
    int window_left = -1, window_right = -1, rel_zero = 0;
    RelEdge edge = RelEdge::kZero;
  } rules;
  std::vector<int> q_lens, kv_lens;
  Problem p;
  std::vector<float> q, k, v, rel_logits, rel, rel_proj, rel_scale;
  std::vector<std::int32_t> table, kv_len, cu_q;

  Tensors tensors() const {
    Tensors t;
    t.q = q.data(), t.k_cache = k.data(), t.v_cache = v.data(), t.rel_logits = rel_logits.data();
    t.rel = rel.data(), t.rel_proj = rel_proj.data(), t.rel_scale = rel_scale.data();
    t.block_table = table.data(), t.cache_seqlens = kv_len.data(), t.cu_seqlens_q = cu_q.data();
    return t;
  }
  Truth truth() const { return define(p, tensors()); }
};

struct Shape {
  std::vector<int> q_lens, kv_lens;
  int n_kv_heads = 1, group = 1, head_dim = 1, page_size = 2;
  BiasMode bias = BiasMode::kNone;
  int extent = 0, d_rel = 0;
  bool has_rel_scale = false;
};

Case make_case(const Shape& shape, const Case::Rules& rules, unsigned seed) {
  std::mt19937 random(seed);
  const auto fill = [&](std::vector<float>& data, std::int64_t n) {
    data.resize(static_cast<std::size_t>(n));
    for (float& x : data) x = static_cast<float>(random() % 2001) / 500.0f - 2.0f;
  };
  Case c;
  c.rules = rules;
  c.q_lens = shape.q_lens, c.kv_lens = shape.kv_lens;
  Problem& p = c.p;
  Strides& s = p.strides;
  p.dtype = p.rel_logits_dtype = DType::kFloat32;
  p.n_seqs = static_cast<int>(shape.q_lens.size());
  p.n_kv_heads = shape.n_kv_heads, p.n_q_heads = shape.n_kv_heads * shape.group, p.head_dim = shape.head_dim,
  p.page_size = shape.page_size;
  p.n_tokens = std::accumulate(shape.q_lens.begin(), shape.q_lens.end(), std::int64_t{0});
  p.bias = shape.bias, p.rel_extent = shape.extent, p.d_rel = shape.d_rel, p.has_rel_scale = shape.has_rel_scale;
  p.rel_zero = rules.rel_zero;
  p.softmax_scale = 0.37;
  p.visible = visible_distances(rules.causal, rules.window_left, rules.window_right);
  p.band = band_distances(rules.rel_zero, shape.extent, rules.edge);
  for (int n : shape.kv_lens)
    p.max_pages = std::max<std::int64_t>(p.max_pages, (n + shape.page_size - 1) / shape.page_size + 1);
  p.n_pages = p.max_pages * p.n_seqs;

  s.q_head = p.head_dim + 1, s.q_token = p.n_q_heads * s.q_head + 2;
  s.k_head = p.head_dim, s.k_slot = p.n_kv_heads * s.k_head + 3, s.k_page = p.page_size * s.k_slot;
  s.v_slot = p.head_dim + 1, s.v_head = p.page_size * s.v_slot, s.v_page = p.n_kv_heads * s.v_head + 5;
  s.rel_logits_head = p.rel_extent, s.rel_logits_token = p.n_q_heads * p.rel_extent + 1;
  s.rel_head = p.d_rel + 2, s.rel_token = p.n_q_heads * s.rel_head, s.rel_proj_row = p.rel_extent + 1, s.rel_scale_token = 2;
  s.table_page = 1, s.table_seq = p.max_pages;
  fill(c.q, p.n_tokens * s.q_token), fill(c.k, p.n_pages * s.k_page), fill(c.v, p.n_pages * s.v_page);
  fill(c.rel_logits, p.n_tokens * s.rel_logits_token), fill(c.rel, p.n_tokens * s.rel_token);
  fill(c.rel_proj, p.d_rel * s.rel_proj_row), fill(c.rel_scale, p.n_tokens * s.rel_scale_token);

  c.cu_q.push_back(0);
  for (int n : shape.q_lens) c.cu_q.push_back(c.cu_q.back() + n);
  c.kv_len.assign(shape.kv_lens.begin(), shape.kv_lens.end());
  c.table.resize(static_cast<std::size_t>(p.n_pages));
  std::iota(c.table.begin(), c.table.end(), 0);
  std::shuffle(c.table.begin(), c.table.end(), random);
  return c;
}

using Real = long double;

Real bias_of(const Case& c, std::int64_t token, int head, int dist) {
  const Problem& p = c.p;
  std::int64_t index = dist + c.rules.rel_zero;
  if (p.bias == BiasMode::kNone || p.rel_extent == 0) return 0;
  if (c.rules.edge == RelEdge::kClamp) index = index < 0 ? 0 : index >= p.rel_extent ? p.rel_extent - 1 : index;
  if (index < 0 || index >= p.rel_extent) return 0;
  if (p.bias == BiasMode::kLogits)
    return c.rel_logits[token * p.strides.rel_logits_token + head * p.strides.rel_logits_head + index];
  Real sum = 0;
  for (int e = 0; e < p.d_rel; ++e)
    sum += Real{c.rel[token * p.strides.rel_token + head * p.strides.rel_head + e]} *
           c.rel_proj[e * p.strides.rel_proj_row + index];
  return p.has_rel_scale ? c.rel_scale[token * p.strides.rel_scale_token] * sum : sum;
}

struct Row {
  std::vector<Real> out;
  Real lse;
};

Row second_formulation(const Case& c, int seq, int i, int head) {
  const Problem& p = c.p;
  const int kv_len = c.kv_lens[seq], q_pos = i + kv_len - c.q_lens[seq], kv_head = head * p.n_kv_heads / p.n_q_heads;
  const std::int64_t token = c.cu_q[seq] + i;
  Row row{std::vector<Real>(static_cast<std::size_t>(p.head_dim), 0), -INFINITY};
  Real sum = 0;
  for (int j = kv_len - 1; j >= 0; --j) {
    const int dist = q_pos - j;
    if ((c.rules.causal && dist < 0) || (c.rules.window_left >= 0 && dist > c.rules.window_left) ||
        (c.rules.window_right >= 0 && -dist > c.rules.window_right))
      continue;
    const std::int64_t page = c.table[seq * p.max_pages + j / p.page_size], slot = j % p.page_size;
    Real dot = 0;
    for (int d = 0; d < p.head_dim; ++d)
      dot += Real{c.q[token * p.strides.q_token + head * p.strides.q_head + d]} *
             c.k[page * p.strides.k_page + slot * p.strides.k_slot + kv_head * p.strides.k_head + d];
    const Real weight = std::exp(p.softmax_scale * dot + bias_of(c, token, head, dist));
    sum += weight;
    for (int d = 0; d < p.head_dim; ++d)
      row.out[d] += weight * c.v[page * p.strides.v_page + slot * p.strides.v_slot + kv_head * p.strides.v_head + d];
  }
  if (sum > 0) {
    row.lse = std::log(sum);
    for (Real& x : row.out) x /= sum;
  }
  return row;
}

int number(int low, int high) { return *rc::gen::inRange(low, high + 1); }
BiasMode any_bias() { return static_cast<BiasMode>(number(0, 2)); }
RelEdge any_edge() { return static_cast<RelEdge>(number(0, 1)); }

Case random_case(BiasMode bias, RelEdge edge) {
  Shape shape;
  for (int n = number(1, 3); n > 0; --n) shape.q_lens.push_back(number(0, 5)), shape.kv_lens.push_back(number(0, 12));
  shape.n_kv_heads = number(1, 2), shape.group = number(1, 3), shape.head_dim = number(1, 5), shape.page_size = number(1, 5);
  shape.bias = bias;
  shape.extent = number(1, 8), shape.d_rel = number(1, 3), shape.has_rel_scale = number(0, 1) == 1;
  return make_case(shape, {number(0, 1) == 1, number(-1, 6), number(-1, 6), number(-3, 6), edge},
                   static_cast<unsigned>(number(0, 1 << 20)));
}

RC_GTEST_PROP(Definition, EqualsTheSecondFormulation, ()) {
  const Case c = random_case(any_bias(), any_edge());
  const Truth truth = c.truth();
  RC_ASSERT(truth.n_rows == c.p.n_tokens);
  for (int seq = 0; seq < c.p.n_seqs; ++seq)
    for (int i = 0; i < c.q_lens[seq]; ++i)
      for (int head = 0; head < c.p.n_q_heads; ++head) {
        const Row row = second_formulation(c, seq, i, head);
        const std::size_t at = static_cast<std::size_t>((c.cu_q[seq] + i) * c.p.n_q_heads + head);
        RC_ASSERT(row.lse == static_cast<Real>(truth.lse[at]) || std::fabs(row.lse - truth.lse[at]) < 1e-12L);
        for (int d = 0; d < c.p.head_dim; ++d) RC_ASSERT(std::fabs(row.out[d] - truth.out[at * c.p.head_dim + d]) < 1e-12L);
      }
}

void assert_near(const std::vector<double>& a, const std::vector<double>& b, double shift, double tolerance) {
  RC_ASSERT(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) RC_ASSERT(a[i] == b[i] || std::fabs(a[i] + shift - b[i]) <= tolerance);
}

RC_GTEST_PROP(Definition, AConstantOnEveryVisibleBiasMovesOnlyLse, ()) {
  Case c = random_case(BiasMode::kLogits, RelEdge::kClamp);
  const Truth before = c.truth();
  for (float& x : c.rel_logits) x += 4.0f;  // the entries are multiples of 1/500 below 2: rounding stays below 1e-6
  const Truth after = c.truth();
  assert_near(before.out, after.out, 0, 1e-5);
  assert_near(before.lse, after.lse, 4, 1e-5);
}

RC_GTEST_PROP(Definition, WherePagesLieDoesNotMatter, ()) {
  const Case c = random_case(any_bias(), any_edge());
  Case moved = c;
  std::vector<int> where(static_cast<std::size_t>(c.p.n_pages));
  std::iota(where.begin(), where.end(), 0);
  std::shuffle(where.begin(), where.end(), std::mt19937(7));
  for (std::size_t page = 0; page < where.size(); ++page) {
    std::copy_n(&c.k[page * c.p.strides.k_page], c.p.strides.k_page, &moved.k[where[page] * c.p.strides.k_page]);
    std::copy_n(&c.v[page * c.p.strides.v_page], c.p.strides.v_page, &moved.v[where[page] * c.p.strides.v_page]);
  }
  for (std::int32_t& page : moved.table) page = where[page];
  RC_ASSERT(c.truth().out == moved.truth().out);
  RC_ASSERT(c.truth().lse == moved.truth().lse);
}

RC_GTEST_PROP(Definition, FusedIsLogitsOfTheProduct, ()) {
  Case c = random_case(BiasMode::kFused, any_edge());
  const Truth fused = c.truth();
  for (std::int64_t token = 0; token < c.p.n_tokens; ++token)
    for (int head = 0; head < c.p.n_q_heads; ++head)
      for (int index = 0; index < c.p.rel_extent; ++index)
        c.rel_logits[token * c.p.strides.rel_logits_token + head * c.p.strides.rel_logits_head + index] =
            static_cast<float>(bias_of(c, token, head, index - c.rules.rel_zero));
  c.p.bias = BiasMode::kLogits;
  assert_near(fused.out, c.truth().out, 0, 1e-5);  // the table is float32
}

// One head of one dimension, q = 0: every weight comes from the bias alone.
Case by_hand(int q_len, int kv_len, const Case::Rules& rules, std::vector<float> bias) {
  Case c = make_case(
      {.q_lens = {q_len}, .kv_lens = {kv_len}, .bias = BiasMode::kLogits, .extent = static_cast<int>(bias.size())}, rules, 1);
  std::fill(c.q.begin(), c.q.end(), 0.0f);
  for (int i = 0; i < q_len; ++i) std::copy(bias.begin(), bias.end(), c.rel_logits.begin() + i * c.p.strides.rel_logits_token);
  for (int j = 0; j < kv_len; ++j)
    c.v[c.table[j / 2] * c.p.strides.v_page + j % 2 * c.p.strides.v_slot] = static_cast<float>(j + 1);
  return c;
}

const float kLn3 = std::log(3.0f);

TEST(DefinitionByHand, UniformWeightsAverage) {
  const Truth truth = by_hand(2, 3, {}, {0.0f}).truth();
  EXPECT_NEAR(truth.out[0], 1.5, 1e-12);  // sees keys 0, 1 with values 1, 2
  EXPECT_NEAR(truth.out[1], 2.0, 1e-12);
  EXPECT_NEAR(truth.lse[0], std::log(2.0), 1e-12);
  EXPECT_NEAR(truth.lse[1], std::log(3.0), 1e-12);
}

TEST(DefinitionByHand, BiasIsReadAtTheDistance) {
  const Truth truth = by_hand(1, 3, {}, {0.0f, kLn3}).truth();  // weights by key: 1 (outside), 3 (dist 1), 1 (dist 0)
  EXPECT_NEAR(truth.out[0], (1 * 1 + 3 * 2 + 1 * 3) / 5.0, 1e-6);
  EXPECT_NEAR(truth.lse[0], std::log(5.0), 1e-6);
}

TEST(DefinitionByHand, ClampRepeatsTheLastEntryAndRelZeroShifts) {
  const Truth clamped = by_hand(1, 4, {.edge = RelEdge::kClamp}, {0.0f, kLn3}).truth();  // weights 3 3 3 1
  EXPECT_NEAR(clamped.out[0], (3 * 1 + 3 * 2 + 3 * 3 + 1 * 4) / 10.0, 1e-6);
  const Truth shifted = by_hand(2, 2, {.causal = false, .rel_zero = 1}, {kLn3, 0.0f}).truth();
  EXPECT_NEAR(shifted.out[0], (1 * 1 + 3 * 2) / 4.0, 1e-6);  // row 0: dist 0 and -1, indices 1 and 0
  EXPECT_NEAR(shifted.out[1], (1 * 1 + 1 * 2) / 2.0, 1e-6);  // row 1: dist 1 and 0, indices 2 (outside) and 1
}

TEST(DefinitionByHand, WindowCountsTheRowsOwnKey) {
  const Truth truth = by_hand(1, 4, {.window_left = 1, .window_right = 0}, {0.0f}).truth();
  EXPECT_NEAR(truth.out[0], 3.5, 1e-12);
}

TEST(DefinitionByHand, RowsWithoutKeysAreZeroAndMinusInfinity) {
  const Truth truth = by_hand(3, 1, {}, {0.0f}).truth();  // the top two rows stand before the only key
  for (int i : {0, 1}) {
    EXPECT_EQ(truth.out[i], 0.0);
    EXPECT_EQ(truth.lse[i], -INFINITY);
  }
  EXPECT_EQ(truth.out[2], 1.0);
  const Truth none = by_hand(2, 0, {.causal = false}, {0.0f}).truth();
  EXPECT_EQ(none.out[1], 0.0);
  EXPECT_EQ(none.lse[1], -INFINITY);
}

TEST(DefinitionByHand, RowsPastThePrefixAreNotDefined) {
  Case c = by_hand(2, 3, {}, {0.0f});
  c.cu_q[1] = 1;
  EXPECT_EQ(c.truth().n_rows, 1);
  EXPECT_EQ(c.truth().out[1], 0.0);
}

}  // namespace
}  // namespace flashrel
