// Launch of the prefill kernel: tensor maps, parameters, one kernel instance.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "backend/sm90/cache_maps.hpp"
#include "backend/sm90/launch_kernel.hpp"
#include "backend/sm90/policy.hpp"
#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/cuda_status.hpp"
#include "gpu/schedule.hpp"
#include "gpu/tensor_map.hpp"

namespace flashrel::sm90::prefill {
namespace {

static_assert(shared_bytes(128, kMaxTileKeys) + kLogitsBytes <= kMaxSharedBytes);

Status make_maps(const Problem& p, const Tensors& t, KernelParams& k) {
  const Strides& s = p.strides;
  const int group = p.group(), tile_tokens = kTileRows / group;
  FLASHREL_RETURN_IF_ERROR(gpu::make_tensor_map("q", t.q, p.dtype,
                                                {{kLineElems, 0, kLineElems},
                                                 {p.n_q_heads, s.q_head, group},
                                                 {p.n_tokens, s.q_token, tile_tokens},
                                                 {lines_per_row(p.head_dim), kLineElems, lines_per_row(p.head_dim)}},
                                                gpu::Swizzle::k128Bytes, k.q));
  FLASHREL_RETURN_IF_ERROR(make_cache_maps(p, t, k.keys_per_box, gpu::L2Fetch::k256Bytes, k.k, k.v));
  if (p.bias == BiasMode::kFused)
    FLASHREL_RETURN_IF_ERROR(gpu::make_tensor_map(
        "rel", t.rel, p.dtype,
        {{p.d_rel, 0, rel_steps(p.d_rel) * kRelDim}, {p.n_q_heads, s.rel_head, group}, {p.n_tokens, s.rel_token, tile_tokens}},
        gpu::Swizzle::kNone, k.rel));
  if (p.bias == BiasMode::kLogits) {
    // One row a head for all tokens is a table of one token.
    const bool broadcast = s.rel_logits_token == 0;
    const LogitsRing ring = logits_ring(static_cast<int>(size_of(p.rel_logits_dtype)), k.group_log2);
    k.logits.row_bytes = ring.row_bytes;
    k.logits.slot_bytes = ring.slot_bytes;
    k.logits.n_slots = FastDiv(static_cast<std::uint32_t>(ring.n_slots));
    k.logits.token_step = broadcast ? 0 : 1;
    FLASHREL_RETURN_IF_ERROR(gpu::make_tensor_map("rel_logits", t.rel_logits, p.rel_logits_dtype,
                                                  {{p.rel_extent, 0, ring.row_entries},
                                                   {p.n_q_heads, s.rel_logits_head, group},
                                                   {broadcast ? 1 : p.n_tokens, s.rel_logits_token, 1}},
                                                  gpu::Swizzle::kNone, k.logits_map));
  }
  return {};
}

bool is_power_of_two(double x) {
  int exponent;
  return std::frexp(x, &exponent) == 0.5;
}

void set_bias(const Problem& p, KernelParams& k) {
  k.band = p.band;
  k.rel_extent = static_cast<int>(p.rel_extent);
  k.rel_zero = p.rel_zero;
  k.inverse_scale = static_cast<float>(1.0 / p.softmax_scale);
  // In bfloat16 a power of two only moves the exponent; float16 could overflow.
  constexpr double kMaxShift = 0x1p20;
  const DType dtype = p.bias == BiasMode::kFused ? p.dtype : p.rel_logits_dtype;
  const bool exact = dtype == DType::kBFloat16 && !p.has_rel_scale && is_power_of_two(p.softmax_scale) &&
                     p.softmax_scale > 1 / kMaxShift && p.softmax_scale < kMaxShift;
  k.n_factor_turns = exact ? 0 : 1;
  k.logits.factor = exact ? k.inverse_scale : 1.0f;
}

void set_projection(const Problem& p, const Tensors& t, KernelParams& k) {
  k.proj = t.rel_proj;
  k.edge_clamps = is_clamped(p.band);
  k.proj_entries = proj_entries(possible_distances(p.visible, p.max_seqlen_q, p.max_seqlen_k), p.rel_zero, k.rel_extent);
  k.proj_row_stride = p.strides.rel_proj_row;
  k.d_rel = p.d_rel;
  k.rel_scale = p.has_rel_scale ? t.rel_scale : nullptr;
  k.rel_scale_stride = p.strides.rel_scale_token;
}

KernelParams make_params(const Problem& p, const Tensors& t, const Plan& plan, const CallMemory& memory) {
  const gpu::AttentionParams shared = gpu::make_attention_params(p, t, plan, memory);
  KernelParams k;
  k.batch = shared.batch;
  k.output = shared.output;
  k.work = shared.work;
  k.schedules_itself = schedules_itself(plan);
  k.n_seqs = p.n_seqs;
  k.n_kv_heads = p.n_kv_heads;
  k.visible = p.visible;
  k.n_tokens = static_cast<int>(p.n_tokens);
  k.group = p.group();
  while ((1 << k.group_log2) < k.group) ++k.group_log2;
  k.windowed = p.visible.end < kFar;
  k.keys_per_box = box_keys(p.page_size);
  k.n_boxes = plan.policy.tile_keys / k.keys_per_box;
  k.zero_page = static_cast<int>(max_of<std::int64_t>(1, p.n_pages));
  k.k_head_stride = p.n_kv_heads > 1 ? static_cast<int>(p.strides.k_head) : 0;
  k.v_head_stride = p.n_kv_heads > 1 ? static_cast<int>(p.strides.v_head) : 0;
  k.scale_log2 = shared.scale_log2;
  // By the rounded factor: that of the exponents drops out of lse.
  k.scale_ln = static_cast<float>(p.softmax_scale / shared.scale_log2);
  k.k_cache = shared.k;
  if (p.bias != BiasMode::kNone) set_bias(p, k);
  if (p.bias == BiasMode::kFused) set_projection(p, t, k);
  return k;
}

template <class T, int kDim, int kSteps>
const void* fused_kernel(int group) {
  if (group == 4) return kernel_address<T, FusedBias<4, kSteps>, kDim>();
  return group == 8 ? kernel_address<T, FusedBias<8, kSteps>, kDim>() : kernel_address<T, FusedBias<16, kSteps>, kDim>();
}

template <class T, int kDim>
const void* kernel_of(const Problem& p) {
  switch (p.bias) {
    case BiasMode::kNone: return kernel_address<T, NoBias, kDim>();
    case BiasMode::kLogits:
      if (p.rel_logits_dtype == DType::kFloat32) return kernel_address<T, LogitsBias<float>, kDim>();
      if constexpr (kDim == 128)
        return p.rel_logits_dtype == DType::kFloat16 ? kernel_address<T, LogitsBias<__half>, kDim>()
                                                     : kernel_address<T, LogitsBias<__nv_bfloat16>, kDim>();
      return kernel_address<T, LogitsBias<T>, kDim>();
    case BiasMode::kFused: break;
  }
  if constexpr (kDim == 128)
    if (rel_steps(p.d_rel) == 2) return fused_kernel<T, kDim, 2>(p.group());
  return fused_kernel<T, kDim, 1>(p.group());
}

template <class T>
const void* kernel_of_dim(const Problem& p) {
  return p.head_dim == 64 ? kernel_of<T, 64>(p) : kernel_of<T, 128>(p);
}

int shared_bytes_of(const Problem& p) {
  switch (p.bias) {
    case BiasMode::kNone: return shared_bytes(p.head_dim, kMaxTileKeys);
    case BiasMode::kLogits: return shared_bytes(p.head_dim, kMaxTileKeys) + kLogitsBytes;
    case BiasMode::kFused: break;
  }
  return fused_bytes(p.head_dim, rel_steps(p.d_rel), static_cast<int>(p.rel_extent));
}

}  // namespace

Status schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream) {
  if (schedules_itself(plan)) return {};
  return gpu::launch_schedule(problem, tensors, plan, schedule, stream);
}

Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream) {
  if (plan.bounds.n_items == 0) return {};
  KernelParams params = make_params(problem, tensors, plan, memory);
  FLASHREL_RETURN_IF_ERROR(make_maps(problem, tensors, params));

  const void* kernel =
      problem.dtype == DType::kBFloat16 ? kernel_of_dim<__nv_bfloat16>(problem) : kernel_of_dim<__half>(problem);
  LaunchShape shape;
  shape.n_blocks = static_cast<int>(min_of<std::int64_t>(plan.policy.n_workers, plan.bounds.n_items));
  shape.n_threads = kThreads;
  shape.shared_bytes = shared_bytes_of(problem);
  // Starts while the schedule kernel runs: barriers, proj^T and the launch itself are out of the way when the items are there.
  // Where no schedule kernel was launched just before, the kernel before this one is the caller's and may have written proj.
  shape.overlaps = !memory.schedule_is_shared && !params.schedules_itself;
  return launch_kernel("sm90 attention kernel", kernel, shape, &params, stream);
}

}  // namespace flashrel::sm90::prefill
