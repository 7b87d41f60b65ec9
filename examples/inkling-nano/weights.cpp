#include "weights.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "check/safetensors.hpp"

namespace inkling {
namespace {

using flashrel::check::FileTensor;
using flashrel::check::TensorFile;

Config read_config(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + ": cannot be read");
  const nlohmann::json text = nlohmann::json::parse(stream).at("text_config");
  Config c;
  c.vocab_size = text.at("vocab_size");
  c.hidden_size = text.at("hidden_size");
  c.intermediate_size = text.at("intermediate_size");
  c.n_q_heads = text.at("num_attention_heads");
  c.head_dim = text.at("head_dim");
  c.d_rel = text.at("d_rel");
  c.conv_taps = text.at("conv_kernel_size");
  c.rms_norm_eps = text.at("rms_norm_eps");
  c.logits_divisor = text.at("logits_mup_width_multiplier");
  if (!text.at("log_scaling_n_floor").is_null()) c.log_scaling_n_floor = text.at("log_scaling_n_floor");
  c.log_scaling_alpha = text.at("log_scaling_alpha");
  for (const std::string kind : text.at("layer_types")) {
    const bool local = kind == "hybrid_sliding";
    if (!local && kind != "hybrid")
      throw std::runtime_error(path + ": layer_types: got '" + kind + "', expected hybrid_sliding or hybrid");
    const int window = text.at("sliding_window_size");
    if (local)
      c.layers.push_back({true, text.at("swa_num_key_value_heads"), window, window});
    else
      c.layers.push_back({false, text.at("num_key_value_heads"), 0, text.at("rel_extent")});
  }
  for (const std::string kind : text.at("mlp_layer_types"))
    if (kind != "dense")
      throw std::runtime_error(path + ": mlp_layer_types: got '" + kind + "', this program serves dense MLPs");
  return c;
}

class Loader {
 public:
  Loader(const std::string& path, const Config& config) : path_(path), config_(config) {
    if (const flashrel::Status status = flashrel::check::read_safetensors(path, file_); !status.ok())
      throw std::runtime_error(path + ": " + status.text);
  }

  // The tensor as float32, after its number of elements has been checked.
  std::vector<float> values(const std::string& name, std::int64_t n_expected) const {
    const FileTensor* tensor = file_.find(name);
    if (tensor == nullptr) throw std::runtime_error(path_ + ": no tensor '" + name + "'");
    const auto n = static_cast<std::int64_t>((tensor->end - tensor->begin) / flashrel::size_of(tensor->dtype));
    if (n != n_expected)
      throw std::runtime_error(path_ + ": " + name + ": got " + std::to_string(n) + " elements, expected " +
                               std::to_string(n_expected));
    std::vector<float> result(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) result[i] = flashrel::load_float(file_.data.data() + tensor->begin, tensor->dtype, i);
    return result;
  }

  PackedMatrix matrix(const std::string& name, int n_out, int n_in) const {
    return {values(name, static_cast<std::int64_t>(n_out) * n_in), n_out, n_in};
  }

  ShortConv conv(const std::string& name, int n_channels) const {
    const int taps = config_.conv_taps;
    const std::vector<float> by_channel = values(name, static_cast<std::int64_t>(n_channels) * taps);
    ShortConv result{n_channels, std::vector<float>(by_channel.size())};
    for (int c = 0; c < n_channels; ++c)
      for (int i = 0; i < taps; ++i)
        result.taps[static_cast<std::size_t>(i) * n_channels + c] = by_channel[static_cast<std::size_t>(c) * taps + i];
    return result;
  }

  LayerWeights layer(int index) const {
    const Config& c = config_;
    const LayerConfig& kind = c.layers[index];
    const std::string layer = "model.llm.layers." + std::to_string(index) + ".", attn = layer + "attn.";
    const int q_width = c.n_q_heads * c.head_dim, kv_width = kind.n_kv_heads * c.head_dim, rel_width = c.n_q_heads * c.d_rel;
    LayerWeights w;
    w.attn_norm = values(layer + "attn_norm.weight", c.hidden_size);
    w.mlp_norm = values(layer + "mlp_norm.weight", c.hidden_size);
    w.q_norm = values(attn + "q_norm.weight", c.head_dim);
    w.k_norm = values(attn + "k_norm.weight", c.head_dim);

    std::vector<float> rows;
    const auto append = [&](const char* name, int width) {
      const std::vector<float> part = values(attn + name, static_cast<std::int64_t>(width) * c.hidden_size);
      rows.insert(rows.end(), part.begin(), part.end());
    };
    append("wq_du.weight", q_width);
    append("wk_dv.weight", kv_width);
    append("wv_dv.weight", kv_width);
    append("wr_du.weight", rel_width);
    w.qkvr = PackedMatrix(rows, q_width + 2 * kv_width + rel_width, c.hidden_size);
    w.o = matrix(attn + "wo_ud.weight", c.hidden_size, q_width);
    w.gate_up = matrix(layer + "mlp.w13_dn.weight", 2 * c.intermediate_size, c.hidden_size);
    w.down = matrix(layer + "mlp.w2_md.weight", c.hidden_size, c.intermediate_size);
    w.mlp_scale = values(layer + "mlp.global_scale", 1)[0];

    w.k_conv = conv(attn + "k_sconv.weight", kv_width);
    w.v_conv = conv(attn + "v_sconv.weight", kv_width);
    w.attn_conv = conv(layer + "attn_sconv.weight", c.hidden_size);
    w.mlp_conv = conv(layer + "mlp_sconv.weight", c.hidden_size);
    w.rel_proj = values(attn + "rel_logits_proj.proj", static_cast<std::int64_t>(c.d_rel) * kind.rel_extent);
    return w;
  }

 private:
  std::string path_;
  const Config& config_;
  TensorFile file_;
};

}  // namespace

int Config::n_kv_heads(bool local) const {
  for (const LayerConfig& layer : layers)
    if (layer.is_local == local) return layer.n_kv_heads;
  return 0;
}

int Config::n_layers(bool local) const {
  return static_cast<int>(
      std::count_if(layers.begin(), layers.end(), [&](const LayerConfig& l) { return l.is_local == local; }));
}

int Config::window() const {
  for (const LayerConfig& layer : layers)
    if (layer.is_local) return layer.window;
  return 0;
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

Weights load_weights(const std::string& folder) {
  Weights w;
  w.config = read_config(folder + "/config.json");
  const Config& c = w.config;
  const Loader loader(folder + "/model.safetensors", c);

  // embedding and embed_norm depend on the token alone
  w.embedding = loader.values("model.llm.embed.weight", static_cast<std::int64_t>(c.vocab_size) * c.hidden_size);
  const std::vector<float> embed_norm = loader.values("model.llm.embed_norm.weight", c.hidden_size);
  for (int token = 0; token < c.vocab_size; ++token) {
    float* row = w.embedding.data() + static_cast<std::size_t>(token) * c.hidden_size;
    rms_norm(row, embed_norm.data(), c.hidden_size, c.rms_norm_eps, row);
  }
  w.final_norm = loader.values("model.llm.norm.weight", c.hidden_size);
  w.unembed = loader.matrix("model.llm.unembed.weight", c.vocab_size, c.hidden_size);
  for (int i = 0; i < static_cast<int>(c.layers.size()); ++i) w.layers.push_back(loader.layer(i));
  return w;
}

}  // namespace inkling
