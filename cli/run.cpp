#include <fmt/format.h>

#include <algorithm>

#include "check/problem_file.hpp"
#include "check/run_host.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"

namespace flashrel::cli {
namespace {

Status choose_memory(const RunCommand& options, MemoryKind& memory) {
  memory = MemoryKind::kHost;
  if (options.memory == "auto")
    check::memory_of_backend(options.backend, memory);  // an unknown name is refused by the call itself
  else if (options.memory == "cuda")
    memory = MemoryKind::kCuda;
  return {};
}

std::size_t total_bytes(const check::HostProblem& host) {
  std::size_t bytes = 0;
  for (const check::Buffer& buffer : host.inputs) bytes += buffer.bytes();
  for (const check::Buffer& buffer : host.outputs) bytes += buffer.bytes();
  return bytes;
}

}  // namespace

int run(const RunCommand& options) {
  const std::size_t before = peak_memory_bytes();
  check::HostProblem host;
  if (Status status = check::read_problem(options.problem, host); !status.ok()) return fail(status);
  check::RunOptions run;
  run.backend = options.backend;
  run.route = options.route;
  run.num_splits = options.num_splits;
  if (Status status = choose_memory(options, run.memory); !status.ok()) return fail(status);

  check::Placement placement;
  Status status = check::Placement::create(host, run, placement);
  if (status.ok()) status = placement.poison();
  if (status.ok()) status = placement.launch();
  if (status.ok()) status = check::synchronize(run.memory);
  if (!status.ok()) return fail(status);
  const std::size_t peak = peak_memory_bytes();

  check::RunResult result = placement.collect();
  if (!result.status.ok()) return fail(result.status);
  if (!result.damage.empty()) return fail(runtime_error(result.damage));
  // Rows of no sequence were left alone; in the file they are zeros.
  const auto* prefix = static_cast<const std::int32_t*>(host.args.cu_seqlens_q.data);
  const auto n_rows = static_cast<std::size_t>(prefix[host.args.cu_seqlens_q.shape[0] - 1]);
  const auto n_heads = static_cast<std::size_t>(host.args.q.shape[1]),
             head_dim = static_cast<std::size_t>(host.args.q.shape[2]);
  std::fill(result.out.begin() + static_cast<std::ptrdiff_t>(n_rows * n_heads * head_dim), result.out.end(), 0.0f);
  std::fill(result.lse.begin() + static_cast<std::ptrdiff_t>(n_rows * n_heads), result.lse.end(), 0.0f);
  status = check::write_result(options.output, host, {std::move(result.out), std::move(result.lse)});
  if (!status.ok()) return fail(status);

  fmt::print("{}: out and lse of {}\n", options.output, options.problem);
  if (options.show_memory) {
    const auto needed = static_cast<double>(total_bytes(host) + placement.workspace_bytes());
    fmt::print("peak memory {} (the program itself {}); inputs, outputs and workspace {} (workspace {}): ratio {:.2f}\n",
               bytes_text(static_cast<double>(peak)), bytes_text(static_cast<double>(before)), bytes_text(needed),
               bytes_text(static_cast<double>(placement.workspace_bytes())), static_cast<double>(peak) / needed);
  }
  return kFine;
}

}  // namespace flashrel::cli
