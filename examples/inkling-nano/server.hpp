// Continuous batching: requests join when pages can be promised to them, prefill in chunks beside the others' decode steps, and
// leave when they are done.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv_cache.hpp"
#include "model.hpp"
#include "sampler.hpp"

namespace inkling {

struct Request {
  std::string prompt;  // at least one byte
  int n_new = 0;       // tokens to generate
  SamplerOptions sampler;
};

struct ServerOptions {
  flashrel::DType dtype = flashrel::DType::kBFloat16;
  int page_size = 64;
  int max_running = 4;      // sequences served at once
  int max_length = 4096;    // of one sequence
  int chunk = 256;          // tokens of a prompt in one step
  int chunks_per_step = 2;  // prompts that are prefilled in one step
};

struct ServerStats {
  std::int64_t n_steps = 0, n_prompt_tokens = 0, n_new_tokens = 0;
  std::int64_t n_decode_steps = 0, n_decode_tokens = 0;  // steps without a prompt, and their tokens
  double prefill_seconds = 0, decode_seconds = 0;        // of steps with and without a prompt
  int max_batch = 0, max_pages[2] = {0, 0};
};

class Server {
 public:
  Server(const Weights& weights, const ServerOptions& options);

  // Queues a request and returns its number; throws std::invalid_argument when it can never be served.
  int submit(Request request);
  // One forward pass; false when there is nothing left to do.
  bool step();

  const std::string& text(int request) const { return texts_[request]; }  // generated so far
  const ServerStats& stats() const { return stats_; }
  const KvCache& cache() const { return cache_; }

  enum class Event { kJoined, kLeft };
  std::function<void(Event, int request)> on_event;

 private:
  struct Running {
    int id;
    Request request;
    Sequence sequence;
    std::vector<std::uint8_t> tokens;  // prompt and generated
    Sampler sampler;

    bool in_prompt() const { return sequence.length < static_cast<std::int64_t>(request.prompt.size()); }
  };

  void admit();
  std::vector<Input> next_batch(std::vector<Running*>& members);
  void take_token(Running& member, std::span<const float> logits);

  const Weights& weights_;
  ServerOptions options_;
  KvCache cache_;
  Model model_;
  std::deque<std::pair<int, Request>> waiting_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<std::string> texts_;
  ServerStats stats_;
};

// Pages that let `n_sequences` sequences of max_length tokens run at once.
CacheOptions cache_options(const Config& config, const ServerOptions& options, int n_sequences);

}  // namespace inkling
