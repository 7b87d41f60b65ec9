#include "server.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace inkling {

CacheOptions cache_options(const Config& config, const ServerOptions& options, int n_sequences) {
  const auto pages = [&](int tokens) { return (tokens + options.page_size - 1) / options.page_size; };
  CacheOptions cache{options.dtype, options.page_size, {0, 0}, options.chunk};
  cache.n_pages[0] = n_sequences * pages(options.max_length);
  cache.n_pages[1] = n_sequences * std::min(pages(options.max_length), pages(config.window() - 1 + options.chunk) + 1);
  return cache;
}

Server::Server(const Weights& weights, const ServerOptions& options)
    : weights_(weights),
      options_(options),
      cache_(weights.config, cache_options(weights.config, options, options.max_running)),
      model_(weights, cache_) {}

int Server::submit(Request request) {
  if (request.prompt.empty()) throw std::invalid_argument("prompt: got an empty text, expected at least one byte");
  if (request.n_new < 1) throw std::invalid_argument("n_new: got " + std::to_string(request.n_new) + ", expected 1 or more");
  const std::int64_t length = static_cast<std::int64_t>(request.prompt.size()) + request.n_new;
  if (length > options_.max_length || !cache_.can_ever_admit(length))
    throw std::invalid_argument("prompt and new tokens: got " + std::to_string(length) + ", the cache holds " +
                                std::to_string(options_.max_length) + " of one sequence");
  const int id = static_cast<int>(texts_.size());
  texts_.emplace_back();
  waiting_.emplace_back(id, std::move(request));
  return id;
}

void Server::admit() {
  while (!waiting_.empty() && static_cast<int>(running_.size()) < options_.max_running) {
    auto& [id, request] = waiting_.front();
    Sequence sequence;
    if (!cache_.admit(sequence, static_cast<std::int64_t>(request.prompt.size()) + request.n_new)) return;
    std::vector<std::uint8_t> tokens(request.prompt.begin(), request.prompt.end());
    const Sampler sampler(request.sampler);
    running_.push_back(
        std::make_unique<Running>(Running{id, std::move(request), std::move(sequence), std::move(tokens), sampler}));
    waiting_.pop_front();
    if (on_event) on_event(Event::kJoined, running_.back()->id);
  }
}

// One token of every sequence that has read its prompt; a whole chunk of a few others. A chunk's size depends on its own prompt
// only, so that a sequence is computed in the same pieces whoever runs beside it.
std::vector<Input> Server::next_batch(std::vector<Running*>& members) {
  std::vector<Input> inputs;
  int n_chunks = 0;
  for (const auto& member : running_) {
    if (member->in_prompt() && n_chunks++ >= options_.chunks_per_step) continue;
    const auto pending = static_cast<std::int64_t>(member->tokens.size()) - member->sequence.length;
    const std::int64_t n = std::min<std::int64_t>(pending, options_.chunk);
    cache_.extend(member->sequence, n);
    inputs.push_back({&member->sequence, std::span(member->tokens).subspan(member->sequence.length, n)});
    members.push_back(member.get());
  }
  return inputs;
}

void Server::take_token(Running& member, std::span<const float> logits) {
  const auto token = static_cast<std::uint8_t>(member.sampler.next(logits));
  member.tokens.push_back(token);
  texts_[member.id].push_back(static_cast<char>(token));
  ++stats_.n_new_tokens;
}

bool Server::step() {
  admit();
  if (running_.empty()) return false;
  const auto started = std::chrono::steady_clock::now();
  std::vector<Running*> members;
  const std::vector<Input> inputs = next_batch(members);
  const std::int64_t n_new_before = stats_.n_new_tokens;
  std::int64_t n_prompt = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (members[i]->in_prompt()) n_prompt += static_cast<std::int64_t>(inputs[i].tokens.size());
  for (const bool local : {false, true})
    stats_.max_pages[local] = std::max(stats_.max_pages[local], cache_.n_pages_in_use(local));
  stats_.max_batch = std::max(stats_.max_batch, static_cast<int>(inputs.size()));

  const std::vector<float> logits = model_.forward(inputs);
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!members[i]->in_prompt())
      take_token(*members[i], std::span(logits).subspan(i * weights_.config.vocab_size, weights_.config.vocab_size));

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  ++stats_.n_steps;
  stats_.n_prompt_tokens += n_prompt;
  if (n_prompt > 0) {
    stats_.prefill_seconds += seconds;
  } else {
    stats_.decode_seconds += seconds;
    ++stats_.n_decode_steps;
    stats_.n_decode_tokens += stats_.n_new_tokens - n_new_before;
  }
  std::erase_if(running_, [&](const std::unique_ptr<Running>& member) {
    if (static_cast<int>(texts_[member->id].size()) < member->request.n_new) return false;
    cache_.release(member->sequence);
    if (on_event) on_event(Event::kLeft, member->id);
    return true;
  });
  return true;
}

}  // namespace inkling
