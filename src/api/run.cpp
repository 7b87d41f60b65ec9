#include "api/run.hpp"

#include "backend/backend.hpp"
#include "combine/combine.hpp"

namespace flashrel {
namespace {

Status combine_parts(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  if (problem.memory == MemoryKind::kHost) return combine_parts_cpu(problem, tensors, plan, memory);
#if defined(FLASHREL_WITH_CUDA)
  return combine_parts_cuda(problem, tensors, plan, memory, stream);
#else
  static_cast<void>(stream);
  return runtime_error("memory: got CUDA in a build without GPU backends");
#endif
}

Status run_kernels(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  FLASHREL_RETURN_IF_ERROR(plan.backend->launch(problem, tensors, plan, memory, stream));
  return plan.bounds.n_slots > 0 && plan.schedule.n_shares == 0 ? combine_parts(problem, tensors, plan, memory, stream)
                                                                : Status{};
}

// Where the plan of the sequences of few rows finds its memory inside the whole plan's.
CallMemory few_rows_memory(const Plan& plan, const CallMemory& memory) {
  return {plan.schedule_memory.at<std::byte>(memory.schedule, kFewRowsScheduleEntry),
          plan.workspace.at<std::byte>(memory.workspace, kFewRowsWorkspaceEntry), memory.schedule_is_shared};
}

}  // namespace

std::size_t workspace_bytes(const Plan& plan, bool shares_schedule) {
  return plan.workspace.total_bytes() + (shares_schedule ? 0 : plan.schedule_memory.total_bytes());
}

CallMemory place_memory(const Plan& plan, void* workspace, void* shared_schedule) {
  if (shared_schedule != nullptr) return {shared_schedule, workspace, true};
  return {static_cast<std::byte*>(workspace) + plan.workspace.total_bytes(), workspace, false};
}

Status run_schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream) {
  FLASHREL_RETURN_IF_ERROR(plan.backend->schedule(problem, tensors, plan, schedule, stream));
  for (const Plan& few : plan.few_rows)
    FLASHREL_RETURN_IF_ERROR(
        run_schedule(problem, tensors, few, plan.schedule_memory.at<std::byte>(schedule, kFewRowsScheduleEntry), stream));
  return {};
}

Status run_plan(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  if (!memory.schedule_is_shared) FLASHREL_RETURN_IF_ERROR(run_schedule(problem, tensors, plan, memory.schedule, stream));
  for (const Plan& few : plan.few_rows)
    FLASHREL_RETURN_IF_ERROR(run_kernels(problem, tensors, few, few_rows_memory(plan, memory), stream));
  return run_kernels(problem, tensors, plan, memory, stream);
}

}  // namespace flashrel
