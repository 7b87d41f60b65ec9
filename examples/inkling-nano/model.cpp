#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace inkling {
namespace {

enum ConvIndex { kKeyConv, kValueConv, kAttnConv, kMlpConv, kConvs };

void copy_to(std::vector<std::byte>& to, const std::vector<float>& from, flashrel::DType dtype) {
  to.resize(from.size() * flashrel::size_of(dtype));
  convert(from.data(), static_cast<std::int64_t>(from.size()), dtype, to.data());
}

// Calls work(i) for every i of [0, n); on one thread where the batch has too few rows to wake the others for (decode).
template <class Work>
void for_each(std::int64_t n, std::int64_t n_rows, Work&& work) {
  if (n_rows >= 16) return parallel_for_each(n, work);
  for (std::int64_t i = 0; i < n; ++i) work(i);
}

}  // namespace

// All tokens of one call, one row each, sequence after sequence.
struct Model::Batch {
  std::span<const Input> inputs;
  std::int64_t n_rows = 0;
  std::vector<std::int64_t> position;     // of a row in its sequence
  std::vector<const Sequence*> sequence;  // of a row
  std::vector<std::int32_t> cu_seqlens_q{0}, cache_seqlens;
  std::int64_t max_seqlen_q = 0, max_pages = 0;
  std::vector<std::int32_t> tables[2];  // [is_local] (n_seqs, max_pages)
  std::vector<float> tau;               // of a row, global layers

  std::vector<float> x;  // residual stream (n_rows, hidden)
  std::vector<float> normed, branch, qkvr, gate_up, attended;
  std::vector<std::byte> q, rel, out;  // in the cache's dtype

  Batch(std::span<const Input> inputs_, const Config& config);
};

Model::Batch::Batch(std::span<const Input> inputs_, const Config& config) : inputs(inputs_) {
  for (const Input& input : inputs) {
    const auto n = static_cast<std::int64_t>(input.tokens.size());
    for (std::int64_t i = 0; i < n; ++i) {
      position.push_back(input.sequence->length + i);
      sequence.push_back(input.sequence);
      const double scaled =
          config.log_scaling_n_floor ? static_cast<double>(position.back() + 1) / *config.log_scaling_n_floor : 1.0;
      tau.push_back(static_cast<float>(1.0 + config.log_scaling_alpha * std::log(std::max(scaled, 1.0))));
    }
    n_rows += n;
    max_seqlen_q = std::max(max_seqlen_q, n);
    cu_seqlens_q.push_back(static_cast<std::int32_t>(n_rows));
    cache_seqlens.push_back(static_cast<std::int32_t>(input.sequence->length + n));
    for (const auto& pages : input.sequence->pages) max_pages = std::max(max_pages, static_cast<std::int64_t>(pages.size()));
  }
  for (const bool local : {false, true})
    for (const Input& input : inputs) {
      const std::vector<std::int32_t>& pages = input.sequence->pages[local];
      tables[local].insert(tables[local].end(), pages.begin(), pages.end());
      tables[local].insert(tables[local].end(), max_pages - pages.size(), kNoPage);
    }
}

Model::Model(const Weights& weights, KvCache& cache) : weights_(weights), config_(weights.config), cache_(cache) {
  std::int64_t offset = 0;
  for (const LayerWeights& layer : weights.layers) {
    std::vector<std::byte>& proj = rel_proj_.emplace_back();
    copy_to(proj, layer.rel_proj, cache.options().dtype);
    for (const ShortConv* conv : {&layer.k_conv, &layer.v_conv, &layer.attn_conv, &layer.mlp_conv}) {
      conv_offsets_.push_back(offset);
      offset += static_cast<std::int64_t>(config_.conv_taps - 1) * conv->n_channels;
    }
  }
  conv_offsets_.push_back(offset);
}

std::vector<float> Model::forward(std::span<const Input> inputs) {
  Batch batch(inputs, config_);
  const std::int64_t hidden = config_.hidden_size;
  batch.x.resize(batch.n_rows * hidden);
  float* row = batch.x.data();
  for (const Input& input : inputs) {
    input.sequence->conv_inputs.resize(conv_offsets_.back());  // zeros before the first token
    for (const std::uint8_t token : input.tokens) {
      std::copy_n(weights_.embedding.data() + token * hidden, hidden, row);
      row += hidden;
    }
  }
  batch.normed.resize(batch.x.size());
  batch.branch.resize(batch.x.size());
  for (int layer = 0; layer < static_cast<int>(weights_.layers.size()); ++layer) {
    attention_branch(layer, batch);
    mlp_branch(layer, batch);
  }

  std::vector<float> last;  // normed rows whose logits are wanted
  for (std::size_t s = 0; s < inputs.size(); ++s) {
    const std::int64_t end = batch.cu_seqlens_q[s + 1];
    for (std::int64_t r = inputs[s].all_logits ? batch.cu_seqlens_q[s] : end - 1; r < end; ++r) {
      last.resize(last.size() + hidden);
      float* to = last.data() + last.size() - hidden;
      rms_norm(batch.x.data() + r * hidden, weights_.final_norm.data(), config_.hidden_size, config_.rms_norm_eps, to);
      for (std::int64_t i = 0; i < hidden; ++i) to[i] /= config_.logits_divisor;
    }
    inputs[s].sequence->length += static_cast<std::int64_t>(inputs[s].tokens.size());
  }
  const std::int64_t n_logits = static_cast<std::int64_t>(last.size()) / hidden;
  std::vector<float> logits(n_logits * config_.vocab_size);
  multiply(last.data(), n_logits, weights_.unembed, logits.data());
  return logits;
}

float* Model::conv_inputs(Sequence& sequence, int layer, int conv_index) const {
  return sequence.conv_inputs.data() + conv_offsets_[layer * kConvs + conv_index];
}

// In place on `data` (n_rows, stride): from the last row of a sequence to its first, so that earlier inputs are still there.
void Model::convolve(int layer, int conv_index, const ShortConv& conv, Batch& batch, float* data, std::int64_t stride) {
  const std::int64_t n_before = config_.conv_taps - 1, n_channels = conv.n_channels;
  for_each(static_cast<std::int64_t>(batch.inputs.size()), batch.n_rows, [&](std::int64_t s) {
    const std::int64_t n = batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s];
    float* rows = data + batch.cu_seqlens_q[s] * stride;
    float* before = conv_inputs(*batch.inputs[s].sequence, layer, conv_index);
    const auto input_at = [&](std::int64_t t) { return t < 0 ? before + (n_before + t) * n_channels : rows + t * stride; };

    std::vector<float> next(n_before * n_channels);
    for (std::int64_t i = 0; i < n_before; ++i)
      std::copy_n(input_at(n - n_before + i), n_channels, next.data() + i * n_channels);
    for (std::int64_t t = n - 1; t >= 0; --t) {
      float* y = rows + t * stride;
      const float* own_taps = conv.taps.data() + n_before * n_channels;
      for (std::int64_t c = 0; c < n_channels; ++c) y[c] += own_taps[c] * y[c];
      for (std::int64_t i = 0; i < n_before; ++i) {
        const float* x = input_at(t - n_before + i);
        const float* taps = conv.taps.data() + i * n_channels;
        for (std::int64_t c = 0; c < n_channels; ++c) y[c] += taps[c] * x[c];
      }
    }
    std::copy(next.begin(), next.end(), before);
  });
}

void Model::attention_branch(int layer, Batch& batch) {
  const LayerWeights& w = weights_.layers[layer];
  const std::int64_t hidden = config_.hidden_size, q_width = config_.n_q_heads * config_.head_dim;
  project(layer, batch);
  attend(layer, batch);
  batch.attended.resize(batch.n_rows * q_width);
  for_each(batch.n_rows, batch.n_rows, [&](std::int64_t r) {
    for (std::int64_t i = r * q_width; i < (r + 1) * q_width; ++i)
      batch.attended[i] = flashrel::load_float(batch.out.data(), cache_.options().dtype, i);
  });
  multiply(batch.attended.data(), batch.n_rows, w.o, batch.branch.data());
  convolve(layer, kAttnConv, w.attn_conv, batch, batch.branch.data(), hidden);
  for (std::size_t i = 0; i < batch.x.size(); ++i) batch.x[i] += batch.branch[i];
}

// q and rel of all rows, K and V into the cache.
void Model::project(int layer, Batch& batch) {
  const LayerWeights& w = weights_.layers[layer];
  const LayerConfig& kind = config_.layers[layer];
  const flashrel::DType dtype = cache_.options().dtype;
  const std::int64_t hidden = config_.hidden_size, head_dim = config_.head_dim;
  const std::int64_t q_width = config_.n_q_heads * head_dim, kv_width = kind.n_kv_heads * head_dim;
  const std::int64_t rel_width = config_.n_q_heads * config_.d_rel, width = w.qkvr.n_out();
  const auto head_norm = [&](float* head, const std::vector<float>& weight) {
    rms_norm(head, weight.data(), config_.head_dim, config_.rms_norm_eps, head);
  };

  for_each(batch.n_rows, batch.n_rows, [&](std::int64_t r) {
    rms_norm(batch.x.data() + r * hidden, w.attn_norm.data(), config_.hidden_size, config_.rms_norm_eps,
             batch.normed.data() + r * hidden);
  });
  batch.qkvr.resize(batch.n_rows * width);
  multiply(batch.normed.data(), batch.n_rows, w.qkvr, batch.qkvr.data());
  convolve(layer, kKeyConv, w.k_conv, batch, batch.qkvr.data() + q_width, width);
  convolve(layer, kValueConv, w.v_conv, batch, batch.qkvr.data() + q_width + kv_width, width);

  batch.q.resize(batch.n_rows * q_width * flashrel::size_of(dtype));
  batch.rel.resize(batch.n_rows * rel_width * flashrel::size_of(dtype));
  for_each(batch.n_rows, batch.n_rows, [&](std::int64_t r) {
    float* q = batch.qkvr.data() + r * width;
    float *k = q + q_width, *v = k + kv_width, *rel = v + kv_width;
    for (int h = 0; h < config_.n_q_heads; ++h) head_norm(q + h * head_dim, w.q_norm);
    for (int h = 0; h < kind.n_kv_heads; ++h) head_norm(k + h * head_dim, w.k_norm);
    if (!kind.is_local)  // the bias gets its share of tau from rel_scale
      for (std::int64_t i = 0; i < q_width; ++i) q[i] *= batch.tau[r];
    convert(q, q_width, dtype, batch.q.data() + r * q_width * flashrel::size_of(dtype));
    convert(rel, rel_width, dtype, batch.rel.data() + r * rel_width * flashrel::size_of(dtype));
    cache_.store(layer, *batch.sequence[r], batch.position[r], k, v);
  });
}

void Model::attend(int layer, Batch& batch) {
  const LayerConfig& kind = config_.layers[layer];
  const auto dtype = static_cast<flashrel_dtype>(cache_.options().dtype);
  const auto n_seqs = static_cast<std::int64_t>(batch.inputs.size());
  batch.out.resize(batch.q.size());

  flashrel::Attention call;
  call.q = flashrel::tensor(batch.q.data(), dtype, {batch.n_rows, config_.n_q_heads, config_.head_dim});
  call.k_cache = cache_.keys(layer);
  call.v_cache = cache_.values(layer);
  call.block_table = flashrel::tensor(batch.tables[kind.is_local].data(), FLASHREL_INT32, {n_seqs, batch.max_pages});
  call.cache_seqlens = flashrel::tensor(batch.cache_seqlens.data(), FLASHREL_INT32, {n_seqs});
  call.cu_seqlens_q = flashrel::tensor(batch.cu_seqlens_q.data(), FLASHREL_INT32, {n_seqs + 1});
  call.rel = flashrel::tensor(batch.rel.data(), dtype, {batch.n_rows, config_.n_q_heads, config_.d_rel});
  call.rel_proj = flashrel::tensor(rel_proj_[layer].data(), dtype, {config_.d_rel, kind.rel_extent});
  if (!kind.is_local && config_.log_scaling_n_floor)
    call.rel_scale = flashrel::tensor(batch.tau.data(), FLASHREL_FLOAT32, {batch.n_rows});
  call.out = flashrel::tensor(batch.out.data(), dtype, {batch.n_rows, config_.n_q_heads, config_.head_dim});
  call.max_seqlen_q = batch.max_seqlen_q;
  call.softmax_scale = 1.0 / config_.head_dim;  // q and k are normalised a head: not 1 / sqrt(head_dim)
  call.window_left = kind.is_local ? kind.window - 1 : -1;
  call.deterministic = 1;
  if (on_attention) on_attention(layer, call);
  if (const flashrel::Result result = call.run(workspace_); !result) throw std::runtime_error(result.message());
}

void Model::mlp_branch(int layer, Batch& batch) {
  const LayerWeights& w = weights_.layers[layer];
  const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
  for_each(batch.n_rows, batch.n_rows, [&](std::int64_t r) {
    rms_norm(batch.x.data() + r * hidden, w.mlp_norm.data(), config_.hidden_size, config_.rms_norm_eps,
             batch.normed.data() + r * hidden);
  });
  batch.gate_up.resize(batch.n_rows * 2 * inner);
  multiply(batch.normed.data(), batch.n_rows, w.gate_up, batch.gate_up.data());
  std::vector<float>& units = batch.attended;
  units.resize(batch.n_rows * inner);
  for_each(batch.n_rows, batch.n_rows, [&](std::int64_t r) {
    const float* gate_up = batch.gate_up.data() + r * 2 * inner;
    for (std::int64_t i = 0; i < inner; ++i) {
      const float gate = gate_up[2 * i], up = gate_up[2 * i + 1];
      units[r * inner + i] = gate / (1.0f + std::exp(-gate)) * up;
    }
  });
  multiply(units.data(), batch.n_rows, w.down, batch.branch.data());
  for (float& value : batch.branch) value *= w.mlp_scale;
  convolve(layer, kMlpConv, w.mlp_conv, batch, batch.branch.data(), hidden);
  for (std::size_t i = 0; i < batch.x.size(); ++i) batch.x[i] += batch.branch[i];
}

}  // namespace inkling
