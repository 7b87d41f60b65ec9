#include "checks.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numbers>
#include <stdexcept>

#include "check/safetensors.hpp"

namespace inkling {
namespace {

using flashrel::check::FileTensor;
using flashrel::check::TensorFile;

template <class T>
std::vector<T> read_tensor(const TensorFile& file, const std::string& path, const char* name) {
  const FileTensor* tensor = file.find(name);
  if (tensor == nullptr) throw std::runtime_error(path + ": no tensor '" + name + "'");
  const auto* data = reinterpret_cast<const T*>(file.data.data() + tensor->begin);
  return {data, data + (tensor->end - tensor->begin) / sizeof(T)};
}

std::vector<std::uint8_t> bytes_of(const std::vector<std::int32_t>& tokens) { return {tokens.begin(), tokens.end()}; }

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

int argmax(std::span<const float> logits) { return Sampler({}).next(logits); }

}  // namespace

Reference load_reference(const std::string& folder) {
  Reference reference;
  std::ifstream text(folder + "/heldout.txt", std::ios::binary);
  if (!text) throw std::runtime_error(folder + "/heldout.txt: cannot be read");
  reference.heldout.assign(std::istreambuf_iterator<char>(text), {});
  const std::string path = folder + "/reference.safetensors";
  TensorFile file;
  if (const flashrel::Status status = flashrel::check::read_safetensors(path, file); !status.ok())
    throw std::runtime_error(path + ": " + status.text);
  reference.window_nats = read_tensor<float>(file, path, "window_nats");
  reference.prompt = bytes_of(read_tensor<std::int32_t>(file, path, "prompt"));
  reference.greedy = bytes_of(read_tensor<std::int32_t>(file, path, "greedy"));
  reference.logits = read_tensor<float>(file, path, "logits");
  return reference;
}

LogitsReport check_logits(const Weights& weights, const Reference& reference, const ServerOptions& options) {
  const std::int64_t vocab = weights.config.vocab_size;
  const auto n_checked = static_cast<std::int64_t>(reference.logits.size()) / vocab;
  const auto n_prompt = static_cast<std::int64_t>(reference.prompt.size());
  KvCache cache(weights.config, cache_options(weights.config, options, 1));
  Model model(weights, cache);
  Sequence sequence;
  cache.admit(sequence, n_prompt + static_cast<std::int64_t>(reference.greedy.size()));

  std::vector<float> logits;
  while (sequence.length < n_prompt) {
    const std::int64_t n = std::min<std::int64_t>(options.chunk, n_prompt - sequence.length);
    cache.extend(sequence, n);
    const Input input{&sequence, std::span(reference.prompt).subspan(sequence.length, n), true};
    const std::vector<float> part = model.forward({&input, 1});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  logits.erase(logits.begin(), logits.end() - n_checked * vocab);

  LogitsReport report;
  double square = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double error = std::abs(static_cast<double>(logits[i]) - reference.logits[i]);
    report.max_error = error <= report.max_error ? report.max_error : error;  // keeps a NaN
    square += error * error;
    report.max_logit = std::max(report.max_logit, static_cast<double>(std::abs(reference.logits[i])));
  }
  report.rms_error = std::sqrt(square / static_cast<double>(logits.size()));
  for (std::int64_t i = 0; i < n_checked; ++i)
    report.n_same_argmax +=
        argmax(std::span(logits).subspan(i * vocab, vocab)) == argmax(std::span(reference.logits).subspan(i * vocab, vocab));
  report.n_positions = static_cast<int>(n_checked);

  report.n_greedy = static_cast<int>(reference.greedy.size());
  std::vector<float> last(logits.end() - vocab, logits.end());
  for (const std::uint8_t expected : reference.greedy) {
    if (argmax(last) != expected) break;
    ++report.n_same_greedy;
    cache.extend(sequence, 1);
    const Input input{&sequence, {&expected, 1}};
    last = model.forward({&input, 1});
  }
  return report;
}

BitsReport check_bits_per_byte(const Weights& weights, const Reference& reference, const ServerOptions& options,
                               int n_windows) {
  const std::int64_t vocab = weights.config.vocab_size;
  const auto n_stored = static_cast<int>(reference.window_nats.size());
  if (static_cast<std::size_t>(n_stored) * kContext > reference.heldout.size())
    throw std::runtime_error("heldout.txt: got " + std::to_string(reference.heldout.size()) +
                             " bytes, the stored losses need " + std::to_string(n_stored * kContext));
  n_windows = n_windows > 0 ? std::min(n_windows, n_stored) : n_stored;
  KvCache cache(weights.config, cache_options(weights.config, options, options.max_running));
  Model model(weights, cache);

  double ours = 0, theirs = 0;
  for (int first = 0; first < n_windows; first += options.max_running) {
    std::vector<Sequence> sequences(std::min(options.max_running, n_windows - first));
    for (Sequence& sequence : sequences) cache.admit(sequence, kContext);
    for (std::int64_t begin = 0; begin < kContext; begin += options.chunk) {
      const std::int64_t n = std::min<std::int64_t>(options.chunk, kContext - begin);
      std::vector<Input> inputs;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        cache.extend(sequences[s], n);
        inputs.push_back({&sequences[s], std::span(reference.heldout).subspan((first + s) * kContext + begin, n), true});
      }
      const std::vector<float> logits = model.forward(inputs);
      for (std::size_t s = 0; s < sequences.size(); ++s)
        for (std::int64_t i = 0; i < n && begin + i + 1 < kContext; ++i) {
          const std::span row = std::span(logits).subspan((s * n + i) * vocab, vocab);
          ours += log_sum_exp(row) - row[reference.heldout[(first + s) * kContext + begin + i + 1]];
        }
    }
    for (Sequence& sequence : sequences) cache.release(sequence);
  }
  for (int w = 0; w < n_windows; ++w) theirs += reference.window_nats[w];
  const double to_bits = 1.0 / (n_windows * (kContext - 1.0)) / std::numbers::ln2;
  return {ours * to_bits, theirs * to_bits, static_cast<std::int64_t>(n_windows) * (kContext - 1)};
}

}  // namespace inkling
