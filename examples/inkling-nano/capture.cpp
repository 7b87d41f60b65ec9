#include "capture.hpp"

#include <cstring>
#include <map>
#include <stdexcept>

#include "check/host_problem.hpp"
#include "check/problem_file.hpp"
#include "index/pages.hpp"
#include "index/ranges.hpp"

namespace inkling {
namespace {

using flashrel::check::HostProblem;

// A dense copy of a contiguous tensor in the problem's own memory.
flashrel_tensor copy_tensor(HostProblem& problem, const flashrel_tensor& from) {
  if (from.rank == 0) return from;
  const std::size_t bytes = flashrel::check::count_of(from) * flashrel::size_of(static_cast<flashrel::DType>(from.dtype));
  flashrel_tensor to = from;
  to.data = problem.add_input(bytes);
  std::memcpy(to.data, from.data, bytes);
  return to;
}

// The pages of a cache in the order given.
flashrel_tensor copy_pages(HostProblem& problem, const flashrel_tensor& cache, const std::vector<std::int32_t>& pages) {
  const std::size_t page_bytes = cache.stride[0] * flashrel::size_of(static_cast<flashrel::DType>(cache.dtype));
  flashrel_tensor to = cache;
  to.shape[0] = static_cast<std::int64_t>(pages.size());
  auto* data = problem.add_input(pages.size() * page_bytes);
  to.data = data;
  for (const std::int32_t page : pages) {
    std::memcpy(data, static_cast<const std::byte*>(cache.data) + page * page_bytes, page_bytes);
    data += page_bytes;
  }
  return to;
}

// The call as a problem of its own: pages that a visible key needs are numbered anew, the other table entries are -1.
HostProblem problem_of(const flashrel_attention_args& call, const std::string& label) {
  HostProblem problem;
  problem.label = label;
  problem.args = call;
  for (const auto field :
       {&flashrel_attention_args::q, &flashrel_attention_args::block_table, &flashrel_attention_args::cache_seqlens,
        &flashrel_attention_args::cu_seqlens_q, &flashrel_attention_args::rel, &flashrel_attention_args::rel_proj,
        &flashrel_attention_args::rel_scale})
    problem.args.*field = copy_tensor(problem, call.*field);
  problem.add_outputs(call.q.shape[1] * call.q.shape[2], true, false);

  flashrel::Call described;
  if (const flashrel::Status status = flashrel::check::describe(problem, described); !status.ok())
    throw std::runtime_error(status.text);
  auto* table = static_cast<std::int32_t*>(problem.args.block_table.data);
  const auto* kv_lens = static_cast<const std::int32_t*>(call.cache_seqlens.data);
  const auto* prefix = static_cast<const std::int32_t*>(call.cu_seqlens_q.data);
  const std::int64_t n_seqs = call.block_table.shape[0], width = call.block_table.shape[1];
  const int page_size = static_cast<int>(call.k_cache.shape[1]);
  std::vector<std::int32_t> pages;
  for (std::int64_t seq = 0; seq < n_seqs; ++seq) {
    const flashrel::Lengths lengths{prefix[seq + 1] - prefix[seq], kv_lens[seq]};
    const flashrel::Range used =
        flashrel::page_entries(flashrel::visible_keys({0, lengths.q_len}, lengths, described.problem.visible), page_size);
    for (std::int64_t entry = 0; entry < width; ++entry) {
      std::int32_t& page = table[seq * width + entry];
      if (entry >= used.begin && entry < used.end) {
        pages.push_back(page);
        page = static_cast<std::int32_t>(pages.size()) - 1;
      } else {
        page = kNoPage;
      }
    }
  }
  problem.args.k_cache = copy_pages(problem, call.k_cache, pages);
  problem.args.v_cache = copy_pages(problem, call.v_cache, pages);
  return problem;
}

}  // namespace

std::vector<std::string> capture_problems(const Weights& weights, const Reference& reference, const ServerOptions& options,
                                          const std::string& folder) {
  KvCache cache(weights.config, cache_options(weights.config, options, 2));
  Model model(weights, cache);
  const auto last_of_kind = [&](bool local) {
    int found = -1;
    for (int i = 0; i < static_cast<int>(weights.config.layers.size()); ++i)
      if (weights.config.layers[i].is_local == local) found = i;
    return found;
  };

  std::vector<std::string> paths;
  const auto write_both_kinds = [&](const std::string& step) {
    model.on_attention = [&, step](int layer, const flashrel::Attention& call) {
      const bool local = weights.config.layers[layer].is_local;
      if (layer != last_of_kind(local)) return;
      const std::string name = std::string(local ? "local_" : "global_") + step;
      paths.push_back(folder + "/" + name + ".safetensors");
      HostProblem problem = problem_of(call, "inkling-nano layer " + std::to_string(layer) + ", " + step);
      if (const flashrel::Status status = flashrel::check::write_problem(paths.back(), problem); !status.ok())
        throw std::runtime_error(paths.back() + ": " + status.text);
    };
  };
  const auto append = [&](std::vector<Sequence*> sequences, std::int64_t n) {
    std::vector<Input> inputs;
    for (Sequence* sequence : sequences) {
      cache.extend(*sequence, n);
      inputs.push_back({sequence, std::span(reference.heldout).subspan(sequence->length, n)});
    }
    model.forward(inputs);
    model.on_attention = nullptr;
  };

  Sequence longer, shorter;
  cache.admit(longer, 2048);
  for (int i = 0; i < 18; ++i) append({&longer}, 64);
  cache.admit(shorter, 512);
  for (int i = 0; i < 3; ++i) append({&shorter}, 100);
  write_both_kinds("decode");
  append({&longer, &shorter}, 1);
  write_both_kinds("prefill");
  append({&longer}, 64);
  return paths;
}

}  // namespace inkling
