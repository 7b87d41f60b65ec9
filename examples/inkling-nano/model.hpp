// The forward pass of the Inkling architecture (dense MLPs): everything but attention in float32, attention by FlashRel in the
// cache's dtype with the fused bias.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "flashrel/flashrel.hpp"
#include "kv_cache.hpp"
#include "weights.hpp"

namespace inkling {

// Tokens to append to one sequence, whose pages must have been taken (KvCache::extend).
struct Input {
  Sequence* sequence;
  std::span<const std::uint8_t> tokens;
  bool all_logits = false;  // of every token; else of the last one
};

class Model {
 public:
  Model(const Weights& weights, KvCache& cache);

  // Appends all inputs in one batch. Returns logits (n, vocab_size) in the order of the inputs.
  std::vector<float> forward(std::span<const Input> inputs);

  // Called before each layer's attention, with the arguments as FlashRel gets them.
  std::function<void(int layer, const flashrel::Attention&)> on_attention;

 private:
  struct Batch;

  void attention_branch(int layer, Batch& batch);
  void project(int layer, Batch& batch);
  void attend(int layer, Batch& batch);
  void mlp_branch(int layer, Batch& batch);
  void convolve(int layer, int conv_index, const ShortConv& conv, Batch& batch, float* data, std::int64_t stride);
  float* conv_inputs(Sequence& sequence, int layer, int conv_index) const;

  const Weights& weights_;
  const Config& config_;
  KvCache& cache_;
  std::vector<std::int64_t> conv_offsets_;        // of (layer, conv) in Sequence::conv_inputs, and the total
  std::vector<std::vector<std::byte>> rel_proj_;  // of each layer in the cache's dtype
  flashrel::HostWorkspace workspace_;
};

}  // namespace inkling
