// The backend's entry: books its workspace, then enqueues projection packing and one kernel instance.
#include <string>

#include "backend/mma/instances.hpp"
#include "backend/mma/mma.hpp"
#include "backend/mma/policy.hpp"
#include "backend/mma/shapes.hpp"
#include "gpu/params.hpp"
#include "gpu/rel_proj.hpp"
#include "gpu/schedule.hpp"

namespace flashrel::mma {
namespace {

constexpr std::string_view kPackedProjEntry = "packed_rel_proj";

LaunchKernel choose_kernel(const Problem& problem, const Policy& policy) {
  const bool bf16 = problem.dtype == DType::kBFloat16;
  if (policy.tile_rows == KeysShape<128>::kTileRows) return bf16 ? keys_bf16_d128 : keys_fp16_d128;
  switch (padded_head_dim(problem)) {
    case 64: return bf16 ? rows_bf16_d64 : rows_fp16_d64;
    case 128: return bf16 ? rows_bf16_d128 : rows_fp16_d128;
    default: return bf16 ? rows_bf16_d256 : rows_fp16_d256;
  }
}

void book(const Problem& problem, Plan& plan) {
  if (plan.policy.route == Route::kFused)
    plan.workspace.book(std::string(kPackedProjEntry), gpu::packed_proj_bytes(problem.rel_extent, problem.d_rel));
}

Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  if (plan.bounds.n_items == 0) return {};
  gpu::AttentionParams params = gpu::make_attention_params(problem, tensors, plan, memory);
  if (plan.policy.route == Route::kFused) {
    void* packed = plan.workspace.at<void>(memory.workspace, kPackedProjEntry);
    FLASHREL_RETURN_IF_ERROR(gpu::launch_pack_rel_proj(problem, tensors, packed, stream));
    params.bias.packed_proj = packed;
  }
  const std::int64_t n_workers = min_of<std::int64_t>(plan.policy.n_workers, plan.bounds.n_items);
  return choose_kernel(problem, plan.policy)(params, {static_cast<int>(n_workers), problem.d_rel, stream});
}

}  // namespace

const Backend kBackend{
    "mma", MemoryKind::kCuda, [] { return std::string(); }, supports, choose_policy, book, gpu::launch_schedule, launch};

}  // namespace flashrel::mma
