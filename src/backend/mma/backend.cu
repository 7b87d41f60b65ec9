// The backend's entry: books its workspace, then enqueues projection packing and one kernel instance.
#include <string>

#include "backend/mma/instances.hpp"
#include "backend/mma/mma.hpp"
#include "backend/mma/policy.hpp"
#include "backend/mma/shapes.hpp"
#include "gpu/params.hpp"
#include "gpu/rel_proj.hpp"
#include "gpu/schedule.hpp"
#include "index/rows.hpp"

namespace flashrel::mma {
namespace {

constexpr std::string_view kPackedProjEntry = "packed_rel_proj";

LaunchKernel keys_kernel(const Problem& problem) { return problem.dtype == DType::kBFloat16 ? keys_bf16_d128 : keys_fp16_d128; }

LaunchKernel rows_kernel(const Problem& problem) {
  const bool bf16 = problem.dtype == DType::kBFloat16;
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
  const Kernels kernels = choose_kernels(problem, plan.schedule.fixed_tiles_per_part > 0);
  const bool for_keys = plan.policy.tile_rows == KeysShape<128>::kTileRows;
  const int n_sms = plan.policy.n_workers / (for_keys ? KeysShape<128>::kCtasPerSm : RowsShape<128>::kCtasPerSm);
  const auto n_workers = [&](int ctas_per_sm) {
    return static_cast<int>(clamp_to<std::int64_t>(n_sms * ctas_per_sm, 1, plan.bounds.n_items));
  };
  constexpr int kMostKeysRows = KeysShape<128>::kTileRows;
  if (kernels.keys) {
    params.work.served_rows = {0, kMostKeysRows + 1};
    const LaunchShape shape{n_workers(KeysShape<128>::kCtasPerSm), problem.d_rel, stream};
    FLASHREL_RETURN_IF_ERROR(keys_kernel(problem)(params, shape));
  }
  if (!kernels.rows) return {};
  params.work.served_rows = {kernels.keys ? kMostKeysRows + 1 : 0, kFar};
  params.bias.pair_rows = params.bias.route == Route::kFused && params.bias.rel_steps <= kMaxWindowSteps &&
                          can_pair_rows(plan.policy.tile_rows, problem.group());
  return rows_kernel(problem)(params, {n_workers(RowsShape<128>::kCtasPerSm), problem.d_rel, stream});
}

}  // namespace

const Backend kBackend{
    "mma", MemoryKind::kCuda, [] { return std::string(); }, supports, choose_policy, book, gpu::launch_schedule, launch};

}  // namespace flashrel::mma
