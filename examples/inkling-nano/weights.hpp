// config.json and model.safetensors of an Inkling checkpoint with dense MLPs, ready for the CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "matmul.hpp"

namespace inkling {

struct LayerConfig {
  bool is_local = false;
  int n_kv_heads = 0;
  int window = 0;  // keys that a token sees, its own included; 0 = all
  int rel_extent = 0;
};

struct Config {
  int vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int n_q_heads = 0, head_dim = 0, d_rel = 0, conv_taps = 0;
  float rms_norm_eps = 0, logits_divisor = 1;
  std::optional<int> log_scaling_n_floor;  // global layers only
  float log_scaling_alpha = 0;
  std::vector<LayerConfig> layers;

  int n_kv_heads(bool local) const;  // of the layers of one kind; 0 = there is none
  int n_layers(bool local) const;
  int window() const;  // of the local layers
};

// Depthwise causal convolution with a residual: y[t] = x[t] + sum_i taps[i] * x[t - n_taps + 1 + i].
struct ShortConv {
  int n_channels = 0;
  std::vector<float> taps;  // (n_taps, n_channels)
};

struct LayerWeights {
  std::vector<float> attn_norm, mlp_norm, q_norm, k_norm;
  PackedMatrix qkvr;  // rows of q, then k, v and rel: one product for all four
  PackedMatrix o;
  PackedMatrix gate_up;  // rows 2 i and 2 i + 1 are gate and up of unit i, as in the checkpoint
  PackedMatrix down;
  ShortConv k_conv, v_conv, attn_conv, mlp_conv;
  std::vector<float> rel_proj;  // (d_rel, rel_extent)
  float mlp_scale = 1;
};

struct Weights {
  Config config;
  std::vector<float> embedding;  // (vocab_size, hidden_size), its norm already applied
  std::vector<float> final_norm;
  PackedMatrix unembed;
  std::vector<LayerWeights> layers;
};

// Reads `folder`/config.json and `folder`/model.safetensors; throws std::runtime_error with one sentence.
Weights load_weights(const std::string& folder);

// x / rms(x) * weight, in place or not, for `n` channels.
void rms_norm(const float* x, const float* weight, int n, float eps, float* y);

}  // namespace inkling
