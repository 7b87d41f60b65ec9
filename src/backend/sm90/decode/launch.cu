// Launch of the decode kernel: tensor maps, parameters, one kernel instance.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backend/sm90/cache_maps.hpp"
#include "backend/sm90/decode/kernel_params.hpp"
#include "backend/sm90/decode/launch.hpp"
#include "backend/sm90/decode/shared.cuh"
#include "backend/sm90/launch_kernel.hpp"
#include "gpu/cuda_status.hpp"
#include "gpu/tensor_map.hpp"

namespace flashrel::sm90::decode {
namespace {

// A copy of rel_proj whose rows start on 16 bytes, for a rel_proj that TMA cannot read.
constexpr const char* kAlignedProjEntry = "aligned_rel_proj";
std::int64_t aligned_proj_stride(const Problem& p) { return round_up<std::int64_t>(p.rel_extent, 8); }

__global__ void align_proj_kernel(const std::uint16_t* proj, std::int64_t row_stride, std::uint16_t* aligned,
                                  std::int64_t aligned_stride, int extent) {
  const int entry = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), row = static_cast<int>(blockIdx.y);
  if (entry < extent) aligned[row * aligned_stride + entry] = proj[row * row_stride + entry];
}

struct Proj {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
};

// rel_proj as TMA can read it; copied when it must be.
Status align_proj(const Problem& p, const Tensors& t, const Plan& plan, const CallMemory& memory, void* stream, Proj& proj) {
  proj = {t.rel_proj, p.strides.rel_proj_row};
  const bool row_fits =
      p.d_rel == 1 || (proj.row_stride > 0 && proj.row_stride % 8 == 0 && proj.row_stride < std::int64_t{1} << 39);
  if (row_fits && reinterpret_cast<std::uintptr_t>(t.rel_proj) % gpu::kTmaAlignBytes == 0) return {};
  auto* aligned = plan.workspace.at<std::uint16_t>(memory.workspace, kAlignedProjEntry);
  proj = {aligned, aligned_proj_stride(p)};
  constexpr int kBlock = 256;
  const dim3 grid(static_cast<unsigned>(ceil_div<std::int64_t>(p.rel_extent, kBlock)), static_cast<unsigned>(p.d_rel));
  align_proj_kernel<<<grid, kBlock, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const std::uint16_t*>(t.rel_proj),
                                                                            p.strides.rel_proj_row, aligned, proj.row_stride,
                                                                            static_cast<int>(p.rel_extent));
  return gpu::launch_status("align_proj_kernel");
}

Status make_bias_maps(const Problem& p, const Tensors& t, Proj proj, int rows, KernelParams& k) {
  const Strides& s = p.strides;
  const int group = p.group(), tile_tokens = rows / group;
  k.rel_bytes = rel_steps(bias_of(p.bias, p.d_rel)) * tile_tokens * group * kRelRowBytes;
  FLASHREL_RETURN_IF_ERROR(gpu::make_tensor_map(
      "rel", t.rel, p.dtype, {{p.d_rel, 0, kRelDim}, {p.n_q_heads, s.rel_head, group}, {p.n_tokens, s.rel_token, tile_tokens}},
      gpu::Swizzle::kNone, k.rel));
  return gpu::make_tensor_map("rel_proj", proj.data, p.dtype,
                              {{p.rel_extent, 0, bias_entries(rows)}, {p.d_rel, proj.row_stride, kRelDim}}, gpu::Swizzle::kNone,
                              k.proj);
}

Status make_logits_map(const Problem& p, const Tensors& t, int rows, KernelParams& k) {
  const Strides& s = p.strides;
  const int group = p.group(), tile_tokens = rows / group;
  k.logits_bytes = tile_tokens * group * bias_entries(rows) * 2;
  return gpu::make_tensor_map("rel_logits", t.rel_logits, p.dtype,
                              {{p.rel_extent, 0, bias_entries(rows)},
                               {p.n_q_heads, s.rel_logits_head, group},
                               {p.n_tokens, s.rel_logits_token, tile_tokens}},
                              gpu::Swizzle::kNone, k.logits);
}

Status make_maps(const Problem& p, const Tensors& t, int rows, KernelParams& k) {
  const Strides& s = p.strides;
  const int group = p.group(), tile_tokens = rows / group;
  k.q_bytes = tile_tokens * group * kHeadDim * 2;
  FLASHREL_RETURN_IF_ERROR(gpu::make_tensor_map("q", t.q, p.dtype,
                                                {{kLineElems, 0, kLineElems},
                                                 {p.n_q_heads, s.q_head, group},
                                                 {p.n_tokens, s.q_token, tile_tokens},
                                                 {kLinesPerRow, kLineElems, 1}},
                                                gpu::Swizzle::k128Bytes, k.q));
  // Sectors only, no 256-byte fetches: those cost 9 % of the read bandwidth here (README.md).
  return make_cache_maps(p, t, k.keys_per_box, gpu::L2Fetch::kSectors, k.k, k.v);
}

KernelParams make_params(const Problem& p, const Tensors& t, const Plan& plan, const CallMemory& memory) {
  const gpu::AttentionParams shared = gpu::make_attention_params(p, t, plan, memory);
  KernelParams k;
  k.batch = shared.batch;
  k.output = shared.output;
  k.work = shared.work;
  k.starts_early = memory.schedule_is_shared && plan.schedule.n_shares > 0;
  k.shares = plan.schedule_memory.at<gpu::Share>(memory.schedule, gpu::kSharesEntry);
  if (auto* counters = plan.schedule_memory.at<std::uint32_t>(memory.schedule, gpu::kMergeCountersEntry); counters != nullptr)
    k.merge = {counters, counters + plan.bounds.n_slots, plan.policy.patience_clocks};
  k.visible = p.visible;
  k.n_tokens = static_cast<int>(p.n_tokens);
  while ((1 << k.group_log2) < p.group()) ++k.group_log2;
  k.keys_per_box = box_keys(p.page_size, min_of<std::int64_t>(p.max_seqlen_k, p.visible.end));
  k.n_boxes = kTileKeys / k.keys_per_box;
  k.zero_page = static_cast<int>(max_of<std::int64_t>(1, p.n_pages));
  k.k_head_stride = p.n_kv_heads > 1 ? static_cast<int>(p.strides.k_head) : 0;
  k.v_head_stride = p.n_kv_heads > 1 ? static_cast<int>(p.strides.v_head) : 0;
  k.scale = static_cast<float>(p.softmax_scale);
  k.scale_log2 = shared.scale_log2;
  // Deterministic: a column's reference must not follow when another column's does.
  k.slack = plan.schedule.fixed_tiles_per_part > 0 ? 0.0f : 0.5f / k.scale_log2;
  k.lowest_score = -1e37f / max_of(1.0f, k.scale_log2);
  if (p.bias == BiasMode::kNone) return k;
  k.band = p.band;
  k.rel_zero = static_cast<int>(p.rel_zero);
  k.rel_scale = p.has_rel_scale ? t.rel_scale : nullptr;
  k.rel_scale_stride = p.strides.rel_scale_token;
  k.inverse_scale = static_cast<float>(1.0 / p.softmax_scale);
  return k;
}

struct Instance {
  const void* kernel = nullptr;
  int shared_bytes = 0;
};

template <class T, int kRows, Bias kBias>
Instance instance_of() {
  constexpr int kBytes = static_cast<int>(sizeof(Memory<kRows, kBias>));
  static_assert(kBytes <= kMaxSharedBytes);
  return {kernel_address<T, kRows, kBias>(), kBytes};
}

template <class T, int kRows>
Instance instance_of(Bias bias) {
  if (bias == Bias::kFused) return instance_of<T, kRows, Bias::kFused>();
  if constexpr (kRows <= kMaxWideRows)
    if (bias == Bias::kWideFused) return instance_of<T, kRows, Bias::kWideFused>();
  if constexpr (kRows <= kMaxLogitsRows)
    if (bias == Bias::kLogits) return instance_of<T, kRows, Bias::kLogits>();
  return instance_of<T, kRows, Bias::kNone>();
}

template <class T>
Instance instance_of(int rows, Bias bias) {
  switch (rows) {
    case 8: return instance_of<T, 8>(bias);
    case 16: return instance_of<T, 16>(bias);
    case 32: return instance_of<T, 32>(bias);
    case 40: return instance_of<T, 40>(bias);
    case 64: return instance_of<T, 64>(bias);
    default: return instance_of<T, 72>(bias);
  }
}

}  // namespace

void book(const Problem& p, Plan& plan) {
  if (p.bias != BiasMode::kFused) return;
  plan.workspace.book(kAlignedProjEntry, static_cast<std::size_t>(p.d_rel * aligned_proj_stride(p)) * 2);
}

Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  if (plan.bounds.n_items == 0) return {};
  const int rows = plan.policy.tile_rows;
  KernelParams params = make_params(problem, tensors, plan, memory);
  FLASHREL_RETURN_IF_ERROR(make_maps(problem, tensors, rows, params));
  if (problem.bias == BiasMode::kLogits) FLASHREL_RETURN_IF_ERROR(make_logits_map(problem, tensors, rows, params));
  if (problem.bias == BiasMode::kFused) {
    Proj proj;
    FLASHREL_RETURN_IF_ERROR(align_proj(problem, tensors, plan, memory, stream, proj));
    FLASHREL_RETURN_IF_ERROR(make_bias_maps(problem, tensors, proj, rows, params));
    if (proj.data != tensors.rel_proj) params.starts_early = false;  // the kernel before is the one that copies it
  }

  const Instance instance = problem.dtype == DType::kBFloat16
                                ? instance_of<__nv_bfloat16>(rows, bias_of(problem.bias, problem.d_rel))
                                : instance_of<__half>(rows, bias_of(problem.bias, problem.d_rel));
  // overlaps: kernel_params.hpp and work.cuh say what is read before the kernel before has ended.
  return launch_kernel("sm90 decode kernel", instance.kernel,
                       {plan.policy.n_workers, kThreads, instance.shared_bytes, /*overlaps=*/true}, &params, stream);
}

}  // namespace flashrel::sm90::decode
