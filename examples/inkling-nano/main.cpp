// inkling-nano: a small trained model of the Inkling architecture, served on the CPU through FlashRel.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/parallel.hpp"
#include "capture.hpp"
#include "checks.hpp"
#include "server.hpp"
#include "weights.hpp"

namespace {

using namespace inkling;

// Beginnings in the three voices of the training text.
const char* const kPrompts[] = {
    "And God said unto Noah,",          "It is a truth universally acknowledged, that",
    "Call me Ishmael. Some years ago",  "And Elizabeth said unto the whale,",
    "Mr. Darcy looked at the sea, and",
};

struct Arguments {
  std::string folder = INKLING_NANO_FOLDER, dtype = "bf16", capture_folder = ".";
  std::vector<std::string> prompts;
  ServerOptions server;
  SamplerOptions sampler{0.5f, 40, 21};
  int n_new = 280, n_windows = 0;
  bool trace = false;
};

// Prints `text` in lines of at most `width` columns, broken between words.
void print_wrapped(const std::string& text, std::size_t width) {
  std::size_t column = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    if (text[begin] == '\n' || text[begin] == ' ') {
      if (text[begin] == '\n') fmt::print("\n"), column = 0;
      ++begin;
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    if (column > 0 && column + 1 + end - begin > width) fmt::print("\n"), column = 0;
    fmt::print("{}{}", column > 0 ? " " : "", text.substr(begin, end - begin));
    column += (column > 0) + end - begin;
    begin = end;
  }
  fmt::print("\n");
}

void print_stats(const Server& server, double seconds) {
  const ServerStats& s = server.stats();
  const double prefill = static_cast<double>(s.n_prompt_tokens) / s.prefill_seconds;
  fmt::print("{} steps, up to {} sequences in one, {:.2f} s on {} threads\n", s.n_steps, s.max_batch, seconds,
             flashrel::parallel_width());
  fmt::print("prefill {:8.0f} tokens/s   ({} prompt tokens; other sequences decoded in the same steps: {} tokens)\n", prefill,
             s.n_prompt_tokens, s.n_new_tokens - s.n_decode_tokens);
  if (s.n_decode_steps > 0)
    fmt::print("decode  {:8.0f} tokens/s   ({} tokens in {} steps of {:.2f} ms)\n",
               static_cast<double>(s.n_decode_tokens) / s.decode_seconds, s.n_decode_tokens, s.n_decode_steps,
               1e3 * s.decode_seconds / static_cast<double>(s.n_decode_steps));
  fmt::print("pages of {} tokens in use at most: {} global, {} local; now: {} and {}\n", server.cache().options().page_size,
             s.max_pages[0], s.max_pages[1], server.cache().n_pages_in_use(false), server.cache().n_pages_in_use(true));
}

int generate(const Arguments& a) {
  const Weights weights = load_weights(a.folder + "/model");
  Server server(weights, a.server);
  std::vector<std::string> prompts = a.prompts;
  if (prompts.empty()) prompts.assign(std::begin(kPrompts), std::end(kPrompts));
  fmt::print("inkling-nano: {} layers, {} query heads of {}, fused relative bias, {} cache; {}\n", weights.config.layers.size(),
             weights.config.n_q_heads, weights.config.head_dim, a.dtype,
             a.sampler.temperature > 0
                 ? fmt::format("temperature {}, top {}, seed {}", a.sampler.temperature, a.sampler.top_k, a.sampler.seed)
                 : "greedy");
  fmt::print("{} prompts, {} served at once, {} new bytes each\n", prompts.size(), a.server.max_running, a.n_new);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    SamplerOptions sampler = a.sampler;
    sampler.seed += i;
    server.submit({prompts[i], a.n_new, sampler});
  }
  server.on_event = [&](Server::Event event, int request) {
    const bool joined = event == Server::Event::kJoined;
    if (a.trace) fmt::print("step {:5}: request {} {}\n", server.stats().n_steps, request + 1, joined ? "joins" : "leaves");
    if (joined) return;
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    fmt::print("\n[{}]\n", request + 1);
    print_wrapped((terminal ? "\033[1m" : "") + prompts[request] + (terminal ? "\033[0m" : "") + server.text(request), 96);
    std::fflush(stdout);
  };
  const auto started = std::chrono::steady_clock::now();
  while (server.step()) {
  }
  fmt::print("\n");
  print_stats(server, std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  return 0;
}

// Bounds; seen: float32 2.5e-5 (sums in another order), bfloat16 0.03 (q, k, v, rel and out are rounded).
constexpr double kMaxLogitError[] = {5e-4, 0.15};

int check_logits_command(const Arguments& a) {
  const Weights weights = load_weights(a.folder + "/model");
  const LogitsReport r = check_logits(weights, load_reference(a.folder + "/reference"), a.server);
  const bool exact = a.server.dtype == flashrel::DType::kFloat32;
  const double bound = kMaxLogitError[exact ? 0 : 1];
  // float32 must also write the same text; with rounded K and V a near tie may fall the other way
  const bool fine = r.max_error <= bound && (!exact || (r.n_same_argmax == r.n_positions && r.n_same_greedy == r.n_greedy));
  fmt::print(
      "logits against transformers (float32), {} cache: largest error {:.2e} (bound {:.1e}), rms {:.2e}, largest logit "
      "{:.1f}\n",
      a.dtype, r.max_error, bound, r.rms_error, r.max_logit);
  fmt::print("same likeliest byte at {} of {} positions; greedy continuation agrees for {} of {} bytes: {}\n", r.n_same_argmax,
             r.n_positions, r.n_same_greedy, r.n_greedy, fine ? "fine" : "WRONG");
  return fine ? 0 : 1;
}

int check_bits_command(const Arguments& a) {
  const Weights weights = load_weights(a.folder + "/model");
  const BitsReport r = check_bits_per_byte(weights, load_reference(a.folder + "/reference"), a.server, a.n_windows);
  const double difference = std::abs(r.ours / r.theirs - 1);
  const bool fine = difference <= 0.005;
  fmt::print(
      "held-out text, {} cache: {:.5f} bits per byte over {} bytes, transformers {:.5f}, difference {:.4f} % (bound 0.5 %): "
      "{}\n",
      a.dtype, r.ours, r.n_bytes, r.theirs, 100 * difference, fine ? "fine" : "WRONG");
  return fine ? 0 : 1;
}

int capture_command(const Arguments& a) {
  const Weights weights = load_weights(a.folder + "/model");
  for (const std::string& path : capture_problems(weights, load_reference(a.folder + "/reference"), a.server, a.capture_folder))
    fmt::print("{}\n", path);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app{
      "A small trained model of the Inkling architecture, served on the CPU through FlashRel.\n"
      "Without a subcommand: generate. Exit codes: 0 fine, 1 a check failed, 2 bad input."};
  app.option_defaults()->always_capture_default();
  app.fallthrough();
  app.add_option("--folder", a.folder, "Folder with model/ and reference/");
  app.add_option("--dtype", a.dtype, "Of q, rel, K and V in attention")->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--page-size", a.server.page_size, "Tokens in a page of the KV cache")->check(CLI::Range(1, 4096));
  app.add_option("--chunk", a.server.chunk, "Prompt tokens in one step")->check(CLI::Range(1, 4096));
  app.add_option("--max-running", a.server.max_running, "Sequences served at once")->check(CLI::Range(1, 256));
  app.add_option("--max-length", a.server.max_length, "Prompt and new tokens of one sequence")->check(CLI::Range(2, 1 << 20));

  CLI::App* generate_app = app.add_subcommand("generate", "Continue several prompts at once (continuous batching)");
  generate_app->fallthrough();
  for (CLI::App* target : {&app, generate_app}) {
    target->add_option("-p,--prompt", a.prompts, "A text to continue; may be given several times; five of its own without");
    target->add_option("-n,--new", a.n_new, "Bytes to generate for each prompt")->check(CLI::Range(1, 1 << 20));
    target->add_option("-t,--temperature", a.sampler.temperature, "0 = greedy")->check(CLI::Range(0.0, 100.0));
    target->add_option("--top-k", a.sampler.top_k, "Sample among the likeliest; 0 = all")->check(CLI::Range(0, 256));
    target->add_option("--seed", a.sampler.seed, "Prompt i uses seed + i");
    target->add_flag("--trace", a.trace, "Print when requests join and leave");
  }
  CLI::App* logits_app = app.add_subcommand("logits-check", "Compare logits with transformers' stored ones");
  CLI::App* bits_app = app.add_subcommand("bpb", "Compare held-out bits per byte with transformers' stored figure");
  bits_app->add_option("--windows", a.n_windows, "Windows of 2048 bytes; 0 = all")->check(CLI::Range(0, 1 << 20));
  CLI::App* capture_app = app.add_subcommand("capture", "Write real problem files of one local and one global layer");
  capture_app->add_option("-o,--out", a.capture_folder, "Folder to write into")->check(CLI::ExistingDirectory);
  app.require_subcommand(0, 1);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  a.server.dtype = a.dtype == "fp32" ? flashrel::DType::kFloat32 : flashrel::DType::kBFloat16;
  try {
    if (logits_app->parsed()) return check_logits_command(a);
    if (bits_app->parsed()) return check_bits_command(a);
    if (capture_app->parsed()) return capture_command(a);
    return generate(a);
  } catch (const std::exception& error) {
    fmt::print(stderr, "inkling-nano: {}\n", error.what());
    return 2;
  }
}
