// The backend's entry: what it books and which of its kernels a plan launches.
#include <string>

#include "backend/sm90/decode/launch.hpp"
#include "backend/sm90/policy.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/sm90.hpp"
#include "gpu/schedule.hpp"
#include "gpu/shares.hpp"

namespace flashrel::sm90 {
namespace {

void book(const Problem& problem, Plan& plan) {
  if (plan.schedule.n_shares > 0) gpu::book_shares(plan);
  if (is_decode(plan.policy)) decode::book(problem, plan);
}

Status schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream) {
  if (plan.schedule.n_shares > 0) return gpu::launch_shares(problem, tensors, plan, schedule, stream);
  return is_decode(plan.policy) ? gpu::launch_schedule(problem, tensors, plan, schedule, stream)
                                : prefill::schedule(problem, tensors, plan, schedule, stream);
}

Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  return is_decode(plan.policy) ? decode::launch(problem, tensors, plan, memory, stream)
                                : prefill::launch(problem, tensors, plan, memory, stream);
}

}  // namespace

const Backend kBackend{"sm90", MemoryKind::kCuda, [] { return std::string(); }, supports, choose_policy, book, schedule,
                       launch};

}  // namespace flashrel::sm90
