#include "plan/make_plan.hpp"

#include <string>
#include <type_traits>

#include "backend/backend.hpp"
#include "plan/route.hpp"

namespace flashrel {
namespace {

// The call as the plan of its sequences of few rows sees it.
Problem few_rows_problem(const Problem& problem, const Policy& policy) {
  Problem few = problem;
  few.max_seqlen_q = policy.few_rows / problem.group();
  return few;
}

// "At most n": beyond this many part slots more splits only cost memory.
constexpr std::int64_t kMaxRequestedSlots = 8192;

// Everything that the schedule and one call of a plan with shape and bounds need.
void book_memory(const Problem& problem, Plan& plan) {
  const auto n_slots = static_cast<std::size_t>(plan.bounds.n_slots);
  const auto tile_rows = static_cast<std::size_t>(plan.policy.tile_rows), head_dim = static_cast<std::size_t>(problem.head_dim);
  plan.schedule_memory = plan.workspace = Workspace{};
  book_work_list(plan);
  plan.workspace.book("part_out", n_slots * tile_rows * head_dim * sizeof(float));  // [slot][row][head_dim]
  plan.workspace.book("part_lse", n_slots * tile_rows * sizeof(float));             // [slot][row]
  plan.backend->book(problem, plan);
}

}  // namespace

ScheduleShape make_schedule_shape(const Problem& problem, const Options& options, const Policy& policy) {
  ScheduleShape s;
  s.n_seqs = problem.n_seqs;
  s.n_kv_heads = problem.n_kv_heads;
  s.group = problem.group();
  s.tile_rows = policy.tile_rows;
  s.tile_keys = policy.tile_keys;
  s.visible = problem.visible;
  s.served_rows.begin = policy.few_rows > 0 ? policy.few_rows + 1 : 0;
  s.min_tiles_per_part = policy.min_tiles_per_part;
  s.by_cost = policy.by_cost ? 1 : 0;
  if (options.deterministic) {
    s.fixed_tiles_per_part = policy.fixed_tiles_per_part;
    s.max_parts = static_cast<int>(min_of<std::int64_t>(options.num_splits, kMaxRequestedSlots));
  } else if (options.num_splits > 0) {
    const std::int64_t units = max_of<std::int64_t>(1, max_units(s, problem.n_tokens, problem.max_seqlen_q));
    s.max_parts =
        static_cast<int>(max_of<std::int64_t>(1, min_of<std::int64_t>(options.num_splits, kMaxRequestedSlots / units)));
  } else if (policy.equal_shares) {
    s.n_shares = policy.n_workers;
  } else {
    s.target_parts = policy.target_parts;
  }
  return s;
}

Status make_plan(const Problem& problem, const Device& device, const Options& options, Plan& plan) {
  plan = Plan{};
  FLASHREL_RETURN_IF_ERROR(choose_backend(problem, device, options, plan));
  plan.policy = plan.backend->choose_policy(problem, device, options);
  if (plan.policy.few_rows > 0) {
    Plan few;
    few.backend = plan.backend;
    few.policy = plan.backend->choose_policy(few_rows_problem(problem, plan.policy), device, options);
    plan.few_rows.push_back(few);
  }
  complete_plan(problem, options, plan);
  return {};
}

void book_work_list(Plan& plan) {
  plan.schedule_memory.book(std::string(kScheduleHeaderEntry), sizeof(ScheduleHeader));
  plan.schedule_memory.book(std::string(kItemsEntry), static_cast<std::size_t>(plan.bounds.n_items) * sizeof(WorkItem));
  plan.schedule_memory.book(std::string(kMergeListEntry),
                            static_cast<std::size_t>(plan.bounds.n_slots / 2) * sizeof(std::int32_t));
}

void complete_plan(const Problem& problem, const Options& options, Plan& plan) {
  plan.schedule = make_schedule_shape(problem, options, plan.policy);
  plan.bounds = schedule_bounds(plan.schedule, problem.n_tokens, problem.max_seqlen_q, problem.max_seqlen_k);
  book_memory(problem, plan);
  for (Plan& few : plan.few_rows) {
    const Problem few_problem = few_rows_problem(problem, plan.policy);
    few.schedule = make_schedule_shape(few_problem, options, few.policy);
    few.schedule.served_rows = {0, plan.policy.few_rows + 1};
    few.bounds = schedule_bounds(few.schedule, few_problem.n_tokens, few_problem.max_seqlen_q, few_problem.max_seqlen_k);
    book_memory(few_problem, few);
    plan.schedule_memory.book(std::string(kFewRowsScheduleEntry), few.schedule_memory.total_bytes());
    plan.workspace.book(std::string(kFewRowsWorkspaceEntry), few.workspace.total_bytes());
  }
}

std::uint64_t schedule_key(const Problem& problem, const Plan& plan) {
  // Whole structs, so that no field can be left out.
  static_assert(std::has_unique_object_representations_v<ScheduleShape> &&
                std::has_unique_object_representations_v<ScheduleBounds>);
  std::uint64_t key = 14695981039346656037u;  // FNV-1a
  const auto mix = [&key](const void* data, std::size_t n) {
    for (const auto* byte = static_cast<const unsigned char*>(data); n > 0; --n, ++byte) key = (key ^ *byte) * 1099511628211u;
  };
  mix(plan.backend->name.data(), plan.backend->name.size());
  mix(plan.policy.name.data(), plan.policy.name.size());
  mix(&plan.schedule, sizeof plan.schedule);
  mix(&plan.bounds, sizeof plan.bounds);
  for (const std::int64_t value : {std::int64_t{plan.policy.n_workers}, problem.n_tokens, problem.max_seqlen_q,
                                   problem.max_seqlen_k, std::int64_t{problem.page_size}, problem.max_pages})
    mix(&value, sizeof value);
  for (const Plan& few : plan.few_rows) {
    const std::uint64_t few_key = schedule_key(problem, few);
    mix(&few_key, sizeof few_key);
  }
  return key;
}

}  // namespace flashrel
