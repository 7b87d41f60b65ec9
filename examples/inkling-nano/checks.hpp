// The two comparisons with transformers' stored results (reference/reference.safetensors, written by reference.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server.hpp"

namespace inkling {

struct Reference {
  std::vector<std::uint8_t> heldout;  // reference/heldout.txt
  std::vector<float> window_nats;     // loss of each window of kContext bytes of it, bytes 1 ... summed
  std::vector<std::uint8_t> prompt, greedy;
  std::vector<float> logits;  // (n, vocab_size) of the last n positions of the prompt
};

inline constexpr int kContext = 2048;

Reference load_reference(const std::string& folder);  // throws std::runtime_error

struct LogitsReport {
  double max_error = 0, rms_error = 0, max_logit = 0;  // of logits, absolute
  int n_same_argmax = 0, n_positions = 0;
  int n_same_greedy = 0, n_greedy = 0;  // leading tokens of the continuation that agree
};

// The prompt in chunks, then the continuation token by token.
LogitsReport check_logits(const Weights& weights, const Reference& reference, const ServerOptions& options);

struct BitsReport {
  double ours = 0, theirs = 0;  // bits per byte
  std::int64_t n_bytes = 0;
};

// Over the first n_windows windows of the held-out text (all when 0), several at once.
BitsReport check_bits_per_byte(const Weights& weights, const Reference& reference, const ServerOptions& options, int n_windows);

}  // namespace inkling
