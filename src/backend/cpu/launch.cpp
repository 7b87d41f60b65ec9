// The CPU backend's five functions: what it serves, its policy, its scratch, and the run itself.
#include <atomic>
#include <cstring>
#include <string>

#include "backend/cpu/cpu.hpp"
#include "backend/cpu/isa.hpp"
#include "backend/cpu/policy.hpp"
#include "backend/cpu/proj.hpp"
#include "base/parallel.hpp"
#include "index/schedule.hpp"

namespace flashrel::cpu {
namespace {

std::string off_reason() { return isa_error(); }

std::string supports(const Problem& problem, const Device&, const Options& options) {
  if (std::string error = isa_error(); !error.empty()) return error;
  if (options.route == "sheared") return "route: got sheared, cpu has score_mod for mode logits; mma has both";
  if (problem.head_dim < 1 || problem.head_dim > 512)
    return "head_dim: got " + std::to_string(problem.head_dim) + ", cpu needs 1 to 512";
  return "";
}

Route route_of(BiasMode bias) {
  switch (bias) {
    case BiasMode::kLogits: return Route::kScoreMod;
    case BiasMode::kFused: return Route::kFused;
    default: return Route::kNone;
  }
}

Policy choose_policy(const Problem& problem, const Device& device, const Options& options) {
  const std::int64_t rows = problem.max_seqlen_q * problem.group();
  const std::int64_t all_rows = problem.n_tokens * problem.n_q_heads;
  const int n_threads = max_of(device.n_threads, 1);
  const Policy* row = &kPolicies[2];
  // Four items a thread keep the threads evenly busy.
  if (all_rows / row->tile_rows < 4 * static_cast<std::int64_t>(n_threads)) row = &kPolicies[1];
  if (rows <= kPolicies[0].tile_rows) row = &kPolicies[0];
  // A sequence's cut must not depend on its neighbours, so neither may the row tile.
  if (options.deterministic) row = &kPolicies[1];
  Policy policy = *row;
  policy.n_workers = n_threads;
  policy.target_parts = n_threads > 1 ? 4 * n_threads : 0;
  policy.route = route_of(problem.bias);
  return policy;
}

void book_workspace(const Problem& problem, const Plan& plan, Workspace& workspace) {
  const ScratchLayout layout = scratch_layout(problem, plan.policy.tile_rows, plan.policy.tile_keys);
  workspace.book("scratch", layout.total * static_cast<std::size_t>(plan.policy.n_workers));
  workspace.book("proj", packed_proj_bytes(problem));
}

std::string at_seq(const char* argument, std::int64_t got, int seq, const std::string& expected) {
  return std::string(argument) + ": got " + std::to_string(got) + " in sequence " + std::to_string(seq) + ", expected " +
         expected;
}

// Lengths are read here for the first time; the plan's bounds must hold before anything is written.
Status check_lengths(const Problem& p, const Tensors& t) {
  std::int64_t previous = p.n_seqs > 0 ? t.cu_seqlens_q[0] : 0;
  if (previous != 0) return invalid("cu_seqlens_q: got a first entry of " + std::to_string(previous) + ", expected 0");
  const std::int64_t max_k = min_of(p.max_seqlen_k, p.max_pages * p.page_size);
  for (int seq = 0; seq < p.n_seqs; ++seq) {
    const std::int64_t next = t.cu_seqlens_q[(seq + 1) * p.strides.cu_q_seq], q_len = next - previous;
    if (q_len < 0 || q_len > p.max_seqlen_q)
      return invalid(at_seq("cu_seqlens_q: q_len", q_len, seq, "0 to max_seqlen_q " + std::to_string(p.max_seqlen_q)));
    if (next > p.n_tokens)
      return invalid(at_seq("cu_seqlens_q: end", next, seq, "at most n_tokens " + std::to_string(p.n_tokens)));
    const std::int64_t kv_len = t.cache_seqlens[seq * p.strides.kv_len_seq];
    if (kv_len < 0 || kv_len > max_k)
      return invalid(at_seq("cache_seqlens", kv_len, seq,
                            "0 to " + std::to_string(max_k) + " (max_seqlen_k and the block table's width)"));
    previous = next;
  }
  return {};
}

struct Run {
  KernelArgs args;
  const IsaKernels* kernels = nullptr;
  const WorkItem* items = nullptr;
  int n_items = 0;
  std::byte* scratch = nullptr;
  std::size_t scratch_bytes = 0;
  std::atomic<int> next{0};
};

void run_items(void* context, int worker) {
  Run& run = *static_cast<Run*>(context);
  if (run.kernels->enter != nullptr) run.kernels->enter();
  std::byte* scratch = run.scratch + static_cast<std::size_t>(worker) * run.scratch_bytes;
  for (int i; (i = run.next.fetch_add(1, std::memory_order_relaxed)) < run.n_items;)
    run.kernels->run_item(run.args, run.items[i], scratch);
  if (run.kernels->leave != nullptr) run.kernels->leave();
}

Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, void* workspace, void*) {
  FLASHREL_RETURN_IF_ERROR(check_lengths(problem, tensors));
  auto* items = plan.workspace.at<WorkItem>(workspace, "items");
  const auto capacity = static_cast<int>(plan.bounds.n_items);
  const auto lengths_of = [&](int seq) {
    const Strides& s = problem.strides;
    const int first = tensors.cu_seqlens_q[seq * s.cu_q_seq];
    return Lengths{tensors.cu_seqlens_q[(seq + 1) * s.cu_q_seq] - first, tensors.cache_seqlens[seq * s.kv_len_seq]};
  };
  int n_items = 0;
  const int n_slots = build_schedule(plan.schedule, lengths_of, [&](const WorkItem& item) {
    if (n_items < capacity) items[n_items] = item;
    ++n_items;
  });
  if (n_items > capacity || n_slots > plan.bounds.n_slots)
    return workspace_error("workspace: the schedule needs " + std::to_string(n_items) + " items and " +
                           std::to_string(n_slots) + " slots, the plan booked " + std::to_string(capacity) + " and " +
                           std::to_string(plan.bounds.n_slots));
  // combine_parts_cpu reads the table up to the first item of no sequence.
  if (n_items < capacity) items[n_items] = WorkItem{.seq = -1};
  if (n_items == 0) return {};

  Run run;
  run.kernels = &kernels_in_use(problem.dtype, problem.head_dim);
  run.items = items;
  run.n_items = n_items;
  run.scratch = plan.workspace.at<std::byte>(workspace, "scratch");
  run.scratch_bytes = scratch_layout(problem, plan.policy.tile_rows, plan.policy.tile_keys).total;
  run.args.problem = problem;
  run.args.tensors = tensors;
  run.args.group = problem.group();
  run.args.tile_rows = plan.policy.tile_rows;
  run.args.tile_keys = plan.policy.tile_keys;
  run.args.part_out = plan.workspace.at<float>(workspace, "part_out");
  run.args.part_lse = plan.workspace.at<float>(workspace, "part_lse");
  if (problem.bias == BiasMode::kFused)
    run.args.proj = pack_proj(problem, tensors, *run.kernels, plan.workspace.at<std::byte>(workspace, "proj"));
  parallel_for(min_of(plan.policy.n_workers, n_items), &run_items, &run);
  return {};
}

}  // namespace

const Backend kBackend = {
    .name = "cpu",
    .memory = MemoryKind::kHost,
    .off_reason = &off_reason,
    .supports = &supports,
    .choose_policy = &choose_policy,
    .book_workspace = &book_workspace,
    .launch = &launch,
};

}  // namespace flashrel::cpu
