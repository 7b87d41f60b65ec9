#include <cmath>
#include <cstdint>

#include "gpu/params.hpp"

namespace flashrel::gpu {
namespace {

constexpr int kVectorBytes = 16;
constexpr double kSmallestScale = 1e-30;

// Every row of a tensor with these strides starts on 16 bytes. A dimension of size 1 may carry any stride.
bool rows_aligned(const void* data, DType dtype, std::initializer_list<std::pair<std::int64_t, std::int64_t>> size_and_stride) {
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  bool aligned = reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
  for (const auto& [size, stride] : size_and_stride) aligned = aligned && (size <= 1 || stride * bytes % kVectorBytes == 0);
  return aligned;
}

TokenTensor token_tensor(const Problem& p, const void* data, DType dtype, std::int64_t token_stride, std::int64_t head_stride) {
  return {data, token_stride, head_stride, rows_aligned(data, dtype, {{p.n_tokens, token_stride}, {p.n_q_heads, head_stride}})};
}

PagedTensor paged_tensor(const Problem& p, const void* data, std::int64_t page, std::int64_t slot, std::int64_t head) {
  return {data, page, slot, head, rows_aligned(data, p.dtype, {{p.n_pages, page}, {p.page_size, slot}, {p.n_kv_heads, head}})};
}

}  // namespace

BatchParams make_batch_params(const Problem& p, const Tensors& t) {
  const Strides& s = p.strides;
  return {t.cache_seqlens, s.kv_len_seq, t.cu_seqlens_q, s.cu_q_seq, t.block_table,
          s.table_seq,     s.table_page, p.max_pages,    p.n_pages,  FastDiv(static_cast<std::uint32_t>(p.page_size))};
}

AttentionParams make_attention_params(const Problem& p, const Tensors& t, const Plan& plan, const CallMemory& memory) {
  const Strides& s = p.strides;
  AttentionParams a;
  a.q = token_tensor(p, t.q, p.dtype, s.q_token, s.q_head);
  a.k = paged_tensor(p, t.k_cache, s.k_page, s.k_slot, s.k_head);
  a.v = paged_tensor(p, t.v_cache, s.v_page, s.v_slot, s.v_head);
  a.batch = make_batch_params(p, t);

  a.bias.route = plan.policy.route;
  a.bias.band = p.band;
  a.bias.rel_zero = p.rel_zero;
  a.bias.rel_extent = p.rel_extent;
  a.bias.logits = token_tensor(p, t.rel_logits, p.rel_logits_dtype, s.rel_logits_token, s.rel_logits_head);
  a.bias.logits_dtype = p.rel_logits_dtype;
  a.bias.rel = token_tensor(p, t.rel, p.dtype, s.rel_token, s.rel_head);
  a.bias.d_rel = p.d_rel;
  a.bias.rel_steps = ceil_div(p.d_rel, 16);
  a.bias.rel_scale = p.has_rel_scale ? t.rel_scale : nullptr;
  a.bias.rel_scale_stride = s.rel_scale_token;

  a.output.out = token_tensor(p, t.out, p.dtype, s.out_token, s.out_head);
  a.output.lse = p.has_lse ? t.lse : nullptr;
  a.output.lse_token_stride = s.lse_token;
  a.output.lse_head_stride = s.lse_head;
  a.output.part_out = plan.workspace.at<float>(memory.workspace, "part_out");
  a.output.part_lse = plan.workspace.at<float>(memory.workspace, "part_lse");

  a.work = {plan.schedule_memory.at<WorkItem>(memory.schedule, kItemsEntry),
            plan.schedule_memory.at<ScheduleHeader>(memory.schedule, kScheduleHeaderEntry),
            {0, kFar}};
  a.tile_rows = plan.policy.tile_rows;
  a.group = FastDiv(static_cast<std::uint32_t>(p.group()));
  a.head_dim = p.head_dim;
  a.scale_is_zero = std::fabs(p.softmax_scale) < kSmallestScale;
  const double scale = a.scale_is_zero ? 1.0 : p.softmax_scale;
  a.scale_log2 = static_cast<float>(scale * 1.4426950408889634);
  a.bias.unit = static_cast<float>(1.0 / scale);
  a.visible = p.visible;
  return a;
}

}  // namespace flashrel::gpu
