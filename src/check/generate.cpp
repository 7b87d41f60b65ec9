#include "check/generate.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "check/random.hpp"
#include "check/threads.hpp"
#include "index/pages.hpp"
#include "index/ranges.hpp"

namespace flashrel::check {
namespace {

enum Stream : std::uint64_t { kQ, kK, kV, kLogits, kRel, kProj, kRelScale, kTarget, kPages, kGarbage, kPerSequence };

constexpr unsigned char kFiniteGarbage = 0x3f;  // 0.75, 1.81 and 0.75 in bf16, fp16 and fp32
constexpr float kLoud = 64.0f;                  // a bias that drowns every other score
constexpr int kKeyBits = 20;                    // V spells its key in that many bits, again and again

class Generator {
 public:
  Generator(const Case& c, std::uint64_t seed, bool shapes_only, HostProblem& host)
      : c_(c),
        seed_(seed),
        shapes_only_(shapes_only),
        host_(host),
        visible_(visible_distances(c.causal, c.window_left, c.window_right)) {}

  void run() {
    host_.label = print_case(c_);
    host_.seed = seed_;
    fill_scalars();
    fill_lengths();
    fill_q();
    fill_table();
    fill_caches();
    if (c_.bias == BiasMode::kLogits) fill_logits();
    if (c_.bias == BiasMode::kFused) fill_fused();
    if (shapes_only_) return outline_outputs();
    host_.add_outputs(c_.n_q_heads * c_.head_dim + c_.out_pad, c_.lse != LseLayout::kAbsent, c_.lse == LseLayout::kHeadMajor);
  }

 private:
  Random random(Stream stream, std::size_t seq = 0) const { return {seed_, stream + seq * kPerSequence}; }
  int unread() const { return c_.poison ? kUntouched : kFiniteGarbage; }
  Lengths lengths(std::size_t seq) const { return {static_cast<int>(c_.q_lens[seq]), static_cast<int>(c_.kv_lens[seq])}; }

  // Keys that hold real numbers.
  Range filled_keys(std::size_t seq) const {
    const Lengths len = lengths(seq);
    return c_.poison ? visible_keys({0, len.q_len}, len, visible_) : Range{0, len.kv_len};
  }

  void* add(std::int64_t n_elems, DType dtype) {
    alignas(16) static std::byte placeholder;
    if (shapes_only_) return &placeholder;
    const std::size_t bytes = static_cast<std::size_t>(n_elems) * size_of(dtype);
    std::byte* data = host_.add_input(bytes);
    std::memset(data, unread(), bytes);
    return data;
  }

  void outline_outputs() {
    alignas(16) static std::byte placeholder;
    host_.args.out = make_tensor(&placeholder, c_.dtype, {c_.n_tokens(), c_.n_q_heads, c_.head_dim});
    if (c_.lse == LseLayout::kAbsent) return;
    host_.args.lse = make_tensor(&placeholder, DType::kFloat32, {c_.n_tokens(), c_.n_q_heads});
  }

  void fill_scalars() {
    flashrel_attention_args& a = host_.args;
    const auto longest = [](const std::vector<std::int64_t>& lens) {
      return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
    };
    a.softmax_scale = c_.scale();
    a.causal = c_.causal;
    a.window_left = c_.window_left;
    a.window_right = c_.window_right;
    a.rel_zero = c_.rel_zero;
    a.rel_edge = static_cast<std::int32_t>(c_.edge);
    a.num_splits = static_cast<std::int32_t>(c_.num_splits);
    a.deterministic = c_.deterministic;
    a.max_seqlen_q = c_.max_q >= 0 ? c_.max_q : longest(c_.q_lens);
    a.max_seqlen_k = c_.max_kv >= 0 ? c_.max_kv : longest(c_.kv_lens);
  }

  void fill_lengths() {
    const auto n_seqs = static_cast<std::int64_t>(c_.n_seqs());
    const auto add_lengths = [&](std::int64_t n) {
      return reinterpret_cast<std::int32_t*>(host_.add_input(static_cast<std::size_t>(n) * sizeof(std::int32_t)));
    };
    std::int32_t *prefix = add_lengths(n_seqs + 1), *kv_lens = add_lengths(n_seqs);
    prefix[0] = 0;
    for (std::size_t seq = 0; seq < c_.n_seqs(); ++seq) {
      prefix[seq + 1] = prefix[seq] + static_cast<std::int32_t>(c_.q_lens[seq]);
      kv_lens[seq] = static_cast<std::int32_t>(c_.kv_lens[seq]);
    }
    host_.args.cu_seqlens_q = make_tensor(prefix, DType::kInt32, {n_seqs + 1});
    host_.args.cache_seqlens = make_tensor(kv_lens, DType::kInt32, {n_seqs});
    first_token_ = prefix;
  }

  // Calls work(seq, token_in_seq, token) for every row of every sequence, on all CPUs.
  template <class Work>
  void for_each_token(Work&& work) const {
    if (shapes_only_) return;
    for (std::size_t seq = 0; seq < c_.n_seqs(); ++seq)
      for_each_index(c_.q_lens[seq], [&](std::int64_t i) { work(seq, i, first_token_[seq] + i); });
  }

  // d numbers of root mean square `rms`.
  void fill_normalised(const Random& r, std::int64_t row, float rms, float* values) const {
    float sum = 0;
    for (std::int64_t e = 0; e < c_.head_dim; ++e) {
      values[e] = r.normal(static_cast<std::uint64_t>(row * c_.head_dim + e));
      sum += values[e] * values[e];
    }
    const float factor = rms * std::sqrt(static_cast<float>(c_.head_dim) / std::fmax(sum, 1e-6f));
    for (std::int64_t e = 0; e < c_.head_dim; ++e) values[e] *= factor;
  }

  void store(void* data, std::int64_t at, const std::vector<float>& values) const {
    for (std::size_t e = 0; e < values.size(); ++e) store_float(data, c_.dtype, at + static_cast<std::int64_t>(e), values[e]);
  }

  void fill_q() {
    const std::int64_t token_stride = c_.n_q_heads * c_.head_dim + c_.q_pad;
    void* q = add(c_.n_tokens() * token_stride, c_.dtype);
    host_.args.q = make_tensor(q, c_.dtype, {c_.n_tokens(), c_.n_q_heads, c_.head_dim});
    host_.args.q.stride[0] = token_stride;
    for_each_token([&](std::size_t seq, std::int64_t i, std::int64_t token) {
      std::vector<float> row(static_cast<std::size_t>(c_.head_dim));
      for (std::int64_t h = 0; h < c_.n_q_heads; ++h) {
        // Learned norm weights differ by head: some attend sharply.
        const auto rms = static_cast<float>(1 + h % 4);
        if (c_.content == Content::kRandom) fill_normalised(random(kQ, seq), i * c_.n_q_heads + h, rms, row.data());
        store(q, token * token_stride + h * c_.head_dim, row);
      }
    });
  }

  // Page numbers for every entry that filled keys need, garbage elsewhere.
  void fill_table() {
    const std::int64_t n_seqs = static_cast<std::int64_t>(c_.n_seqs());
    const auto page = static_cast<int>(c_.page_size);
    std::int64_t width = 0;
    n_pages_ = c_.spare_pages;
    for (std::size_t seq = 0; seq < c_.n_seqs(); ++seq) {
      width = std::max(width, ceil_div(c_.kv_lens[seq], c_.page_size));
      n_pages_ += page_entries(filled_keys(seq), page).size();
    }
    width += c_.table_pad;
    table_ = static_cast<std::int32_t*>(add(n_seqs * width, DType::kInt32));
    host_.args.block_table = make_tensor(table_, DType::kInt32, {n_seqs, width});
    if (shapes_only_) return;
    std::vector<std::int32_t> pages(static_cast<std::size_t>(n_pages_));
    std::iota(pages.begin(), pages.end(), 0);
    if (c_.shuffled)
      for (std::size_t i = pages.size(); i > 1; --i)
        std::swap(pages[i - 1], pages[static_cast<std::size_t>(random(kPages).below(i, static_cast<std::int64_t>(i)))]);
    const std::int32_t garbage[] = {-1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min(), 0,
                                    static_cast<std::int32_t>(n_pages_)};
    for (std::int64_t i = 0; i < n_seqs * width; ++i)
      table_[i] = garbage[random(kGarbage).below(static_cast<std::uint64_t>(i), std::size(garbage))];
    std::size_t next = 0;
    for (std::size_t seq = 0; seq < c_.n_seqs(); ++seq) {
      const Range used = page_entries(filled_keys(seq), page);
      for (int entry = used.begin; entry < used.end; ++entry)
        table_[static_cast<std::int64_t>(seq) * width + entry] = pages[next++];
    }
  }

  // Strides of one (n_pages, page, heads, d) view by layout; `rows` = 2 when K and V share rows.
  flashrel_tensor cache_view(void* data, std::int64_t page_elems, std::int64_t rows, std::int64_t half) const {
    flashrel_tensor view = make_tensor(data, c_.dtype, {n_pages_, c_.page_size, c_.n_kv_heads, c_.head_dim});
    const std::int64_t row = rows * c_.head_dim;
    view.data = static_cast<std::byte*>(data) + static_cast<std::size_t>(half * c_.head_dim) * size_of(c_.dtype);
    view.stride[0] = page_elems;
    view.stride[1] = c_.layout == Layout::kHnd ? row : row * c_.n_kv_heads;
    view.stride[2] = c_.layout == Layout::kHnd ? row * c_.page_size : row;
    return view;
  }

  void fill_caches() {
    const std::int64_t half_elems = c_.page_size * c_.n_kv_heads * c_.head_dim;
    if (c_.layout == Layout::kSplit) {
      const std::int64_t page_elems = half_elems + c_.kv_pad;
      host_.args.k_cache = cache_view(add(n_pages_ * page_elems, c_.dtype), page_elems, 1, 0);
      host_.args.v_cache = cache_view(add(n_pages_ * page_elems, c_.dtype), page_elems, 1, 0);
    } else {
      const std::int64_t page_elems = 2 * half_elems + c_.kv_pad;
      void* both = add(n_pages_ * page_elems, c_.dtype);
      host_.args.k_cache = cache_view(both, page_elems, 2, 0);
      host_.args.v_cache = cache_view(both, page_elems, 2, 1);
      host_.kv_layout = c_.layout == Layout::kNhd ? "NHD" : "HND";
    }
    if (shapes_only_) return;
    for (std::size_t seq = 0; seq < c_.n_seqs(); ++seq) {
      const Range keys = filled_keys(seq);
      for_each_index(keys.size(), [&](std::int64_t i) { fill_key(seq, keys.begin + static_cast<int>(i)); });
    }
  }

  void fill_key(std::size_t seq, int key) const {
    const auto page_size = static_cast<int>(c_.page_size);
    const std::int64_t width = host_.args.block_table.shape[1];
    const std::int64_t page = table_[static_cast<std::int64_t>(seq) * width + page_entry(key, page_size)];
    const flashrel_tensor &k = host_.args.k_cache, &v = host_.args.v_cache;
    std::vector<float> row(static_cast<std::size_t>(c_.head_dim));
    for (std::int64_t h = 0; h < c_.n_kv_heads; ++h) {
      const auto offset = [&](const flashrel_tensor& t) {
        return page * t.stride[0] + page_slot(key, page_size) * t.stride[1] + h * t.stride[2];
      };
      const std::int64_t index = key * c_.n_kv_heads + h;
      fill_normalised(random(kK, seq), index, 1.0f, row.data());
      store(k.data, offset(k), row);
      for (std::size_t e = 0; e < row.size(); ++e)
        row[e] = c_.content == Content::kOneHot ? static_cast<float>(((key >> (e % kKeyBits)) & 1) ? 1 : -1)
                                                : random(kV, seq).normal(static_cast<std::uint64_t>(index) * row.size() + e);
      store(v.data, offset(v), row);
    }
  }

  // A smooth decay with distance on top of a step at the extent, as trained layers have it.
  float layer_bias(std::int64_t index, std::int64_t head, float noise) const {
    const auto reach = static_cast<float>(8 << (head % 6));
    return 1.6f + 1.0f / (1.0f + static_cast<float>(index) / reach) + 0.25f * noise;
  }

  float logits_entry(std::size_t seq, std::int64_t i, std::int64_t head, std::int64_t index) const {
    const auto row = static_cast<std::uint64_t>(i * c_.n_q_heads + head);
    const auto at = row * static_cast<std::uint64_t>(c_.extent) + static_cast<std::uint64_t>(index);
    switch (c_.content) {
      case Content::kRandom: return layer_bias(index, head, random(kLogits, seq).normal(at));
      case Content::kZeroQ: return static_cast<float>(random(kLogits, seq).below(at, 8) - 3);  // integers: exact in every dtype
      case Content::kOneHot: return index == random(kTarget, seq).below(row, c_.extent) ? kLoud : 0.0f;
    }
    return 0;
  }

  void fill_logits() {
    const DType dtype = c_.rel_dtype_is_dtype ? c_.dtype : c_.rel_dtype;
    const std::int64_t row_elems = c_.n_q_heads * c_.extent;
    void* logits = add((c_.broadcast_logits ? 1 : c_.n_tokens()) * row_elems, dtype);
    host_.args.rel_logits = make_tensor(logits, dtype, {c_.n_tokens(), c_.n_q_heads, c_.extent});
    const auto fill = [&](std::size_t seq, std::int64_t i, std::int64_t row) {
      for (std::int64_t h = 0; h < c_.n_q_heads; ++h)
        for (std::int64_t index = 0; index < c_.extent; ++index)
          store_float(logits, dtype, row * row_elems + h * c_.extent + index,
                      static_cast<float>(c_.gain) * logits_entry(seq, i, h, index));
    };
    if (c_.broadcast_logits) {
      host_.args.rel_logits.stride[0] = 0;
      if (!shapes_only_) fill(0, 0, 0);
    } else {
      for_each_token(fill);
    }
  }

  float rel_entry(std::size_t seq, std::int64_t i, std::int64_t head, std::int64_t e) const {
    const auto row = static_cast<std::uint64_t>(i * c_.n_q_heads + head);
    if (c_.content != Content::kRandom) return e == random(kTarget, seq).below(row, c_.d_rel) ? 1.0f : 0.0f;
    const float noise = random(kRel, seq).normal(row * static_cast<std::uint64_t>(c_.d_rel) + static_cast<std::uint64_t>(e));
    return e == 0 ? 1.0f + 0.2f * noise : 0.5f * noise;
  }

  float proj_entry(std::int64_t e, std::int64_t index) const {
    const auto at = static_cast<std::uint64_t>(e * c_.extent + index);
    switch (c_.content) {
      case Content::kRandom: {
        const float noise = random(kProj).normal(at);
        return e == 0 ? layer_bias(index, 3, 0.2f * noise) : 0.5f * (layer_bias(index, e, 0.4f * noise) - 1.6f);
      }
      case Content::kZeroQ: return static_cast<float>(random(kProj).below(at, 8) - 3);
      case Content::kOneHot: return index == random(kProj).below(static_cast<std::uint64_t>(e), c_.extent) ? kLoud : 0.0f;
    }
    return 0;
  }

  void fill_fused() {
    void* rel = add(c_.n_tokens() * c_.n_q_heads * c_.d_rel, c_.dtype);
    host_.args.rel = make_tensor(rel, c_.dtype, {c_.n_tokens(), c_.n_q_heads, c_.d_rel});
    for_each_token([&](std::size_t seq, std::int64_t i, std::int64_t token) {
      for (std::int64_t h = 0; h < c_.n_q_heads; ++h)
        for (std::int64_t e = 0; e < c_.d_rel; ++e)
          store_float(rel, c_.dtype, (token * c_.n_q_heads + h) * c_.d_rel + e, rel_entry(seq, i, h, e));
    });
    void* proj = add(c_.d_rel * c_.extent, c_.dtype);
    host_.args.rel_proj = make_tensor(proj, c_.dtype, {c_.d_rel, c_.extent});
    for (std::int64_t e = 0; e < c_.d_rel && !shapes_only_; ++e)
      for (std::int64_t index = 0; index < c_.extent; ++index)
        store_float(proj, c_.dtype, e * c_.extent + index, static_cast<float>(c_.gain) * proj_entry(e, index));
    if (!c_.has_rel_scale) return;
    auto* scale = static_cast<float*>(add(c_.n_tokens(), DType::kFloat32));
    host_.args.rel_scale = make_tensor(scale, DType::kFloat32, {c_.n_tokens()});
    for_each_token([&](std::size_t seq, std::int64_t i, std::int64_t token) {
      const Random r = random(kRelScale, seq);
      const auto index = static_cast<std::uint64_t>(i);
      scale[token] =
          c_.content == Content::kRandom ? 1.0f + 0.5f * r.uniform(index) : static_cast<float>(1 + r.below(index, 2));
    });
  }

  const Case& c_;
  std::uint64_t seed_;
  bool shapes_only_;
  HostProblem& host_;
  Range visible_;
  std::int64_t n_pages_ = 0;
  const std::int32_t* first_token_ = nullptr;
  std::int32_t* table_ = nullptr;
};

}  // namespace

HostProblem generate(const Case& c, std::uint64_t seed) {
  HostProblem host;
  Generator(c, seed, false, host).run();
  return host;
}

HostProblem outline(const Case& c) {
  HostProblem host;
  Generator(c, 0, true, host).run();
  return host;
}

}  // namespace flashrel::check
