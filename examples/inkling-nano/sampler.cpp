#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace inkling {

int Sampler::next(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options_.temperature <= 0) return static_cast<int>(best - logits.begin());

  std::vector<int> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  if (options_.top_k > 0 && options_.top_k < static_cast<int>(tokens.size())) {
    const auto likelier = [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    std::nth_element(tokens.begin(), tokens.begin() + options_.top_k, tokens.end(), likelier);
    tokens.resize(options_.top_k);
    std::sort(tokens.begin(), tokens.end());  // the order, and so the draw, does not depend on the library's nth_element
  }
  std::vector<double> upto;
  double sum = 0;
  for (const int token : tokens)
    upto.push_back(sum += std::exp((static_cast<double>(logits[token]) - *best) / options_.temperature));
  const double draw = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;  // same bits with every standard library
  const auto at = std::upper_bound(upto.begin(), upto.end(), draw);
  return tokens[std::min<std::size_t>(at - upto.begin(), tokens.size() - 1)];
}

}  // namespace inkling
