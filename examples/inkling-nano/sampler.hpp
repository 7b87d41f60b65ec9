// The next token from logits: greedy, or by temperature and top-k from a seeded generator.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace inkling {

struct SamplerOptions {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = all
  std::uint64_t seed = 1;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  int next(std::span<const float> logits);

 private:
  SamplerOptions options_;
  std::mt19937_64 random_;
};

}  // namespace inkling
