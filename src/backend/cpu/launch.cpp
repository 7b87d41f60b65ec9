// The CPU backend's functions: what it serves, its policy, its scratch, the schedule and the run itself.
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

void book(const Problem& problem, Plan& plan) {
  const ScratchLayout layout = scratch_layout(problem, plan.policy.tile_rows, plan.policy.tile_keys);
  plan.workspace.book("scratch", layout.total * static_cast<std::size_t>(plan.policy.n_workers));
  plan.workspace.book("proj", packed_proj_bytes(problem));
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

Status schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* memory, void*) {
  auto* items = plan.schedule_memory.at<WorkItem>(memory, kItemsEntry);
  auto* merges = plan.schedule_memory.at<std::int32_t>(memory, kMergeListEntry);
  const auto lengths_of = [&](int seq) {
    const Strides& s = problem.strides;
    const int first = tensors.cu_seqlens_q[seq * s.cu_q_seq];
    return Lengths{tensors.cu_seqlens_q[(seq + 1) * s.cu_q_seq] - first, tensors.cache_seqlens[seq * s.kv_len_seq]};
  };
  ScheduleHeader header;
  header.n_slots = build_schedule(plan.schedule, lengths_of, [&](const WorkItem& item) {
    const bool fits = header.n_items < plan.bounds.n_items && item.slot < plan.bounds.n_slots;
    if (fits && item.n_parts > 1 && item.part == 0) merges[header.n_merges++] = header.n_items;
    if (fits) items[header.n_items] = item;
    ++header.n_items;
  });
  if (header.n_items > plan.bounds.n_items || header.n_slots > plan.bounds.n_slots)
    return workspace_error("schedule: needs " + std::to_string(header.n_items) + " items and " +
                           std::to_string(header.n_slots) + " slots, the plan booked " + std::to_string(plan.bounds.n_items) +
                           " and " + std::to_string(plan.bounds.n_slots));
  *plan.schedule_memory.at<ScheduleHeader>(memory, kScheduleHeaderEntry) = header;
  return {};
}

Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void*) {
  const int n_items = plan.schedule_memory.at<ScheduleHeader>(memory.schedule, kScheduleHeaderEntry)->n_items;
  if (n_items == 0) return {};

  Run run;
  run.kernels = &kernels_in_use(problem.dtype, problem.head_dim);
  run.items = plan.schedule_memory.at<WorkItem>(memory.schedule, kItemsEntry);
  run.n_items = n_items;
  run.scratch = plan.workspace.at<std::byte>(memory.workspace, "scratch");
  run.scratch_bytes = scratch_layout(problem, plan.policy.tile_rows, plan.policy.tile_keys).total;
  run.args.problem = problem;
  run.args.tensors = tensors;
  run.args.group = problem.group();
  run.args.tile_rows = plan.policy.tile_rows;
  run.args.tile_keys = plan.policy.tile_keys;
  run.args.part_out = plan.workspace.at<float>(memory.workspace, "part_out");
  run.args.part_lse = plan.workspace.at<float>(memory.workspace, "part_lse");
  if (problem.bias == BiasMode::kFused)
    run.args.proj = pack_proj(problem, tensors, *run.kernels, plan.workspace.at<std::byte>(memory.workspace, "proj"));
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
    .book = &book,
    .schedule = &schedule,
    .launch = &launch,
};

}  // namespace flashrel::cpu
