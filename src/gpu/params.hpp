// Kernel parameters shared by the GPU backends: pointers with their strides (in elements), grouped by what they describe.
// Filled once a launch by make_attention_params; passed by value.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "base/int_math.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "index/distance.hpp"
#include "index/schedule.hpp"

namespace flashrel::gpu {

// (n_tokens, n_heads, row): rows are contiguous; `aligned`: every row starts on 16 bytes.
struct TokenTensor {
  const void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  bool aligned = false;
};

// (n_pages, page_size, n_kv_heads, head_dim)
struct PagedTensor {
  const void* data = nullptr;
  std::int64_t page_stride = 0, slot_stride = 0, head_stride = 0;
  bool aligned = false;
};

// The batch: lengths and page table, all on the device.
struct BatchParams {
  const std::int32_t* kv_lens = nullptr;  // (n_seqs)
  std::int64_t kv_lens_stride = 1;
  const std::int32_t* cu_q = nullptr;  // (n_seqs + 1)
  std::int64_t cu_q_stride = 1;
  const std::int32_t* block_table = nullptr;  // (n_seqs, max_pages)
  std::int64_t table_seq_stride = 0, table_page_stride = 1;
  std::int64_t max_pages = 0, n_pages = 0;
  FastDiv page_size;

  FLASHREL_HD Lengths lengths(int seq) const {
    return {cu_q[(seq + 1) * cu_q_stride] - cu_q[seq * cu_q_stride], kv_lens[seq * kv_lens_stride]};
  }
};

struct BiasParams {
  Route route = Route::kNone;
  Range band{0, 0};  // distances that read L
  std::int64_t rel_zero = 0, rel_extent = 0;
  float unit = 1;  // 1 / softmax_scale: scores are kept in units of q.k until the softmax
  // score_mod, sheared: rel_logits (n_tokens, n_q_heads, rel_extent)
  TokenTensor logits;
  DType logits_dtype = DType::kBFloat16;
  // fused: rel (n_tokens, n_q_heads, d_rel) and the packed projection (gpu/rel_proj.hpp)
  TokenTensor rel;
  int d_rel = 0, rel_steps = 0;  // steps of 16: ceil(d_rel / 16)
  const void* packed_proj = nullptr;
  bool pair_rows = false;            // the kernel takes the rows of whole tiles in pairs (index/rows.hpp)
  const float* rel_scale = nullptr;  // (n_tokens), nullable
  std::int64_t rel_scale_stride = 0;
};

// Where results go: out and lse for items of one part, the part buffers (tile_rows rows a slot) for the others.
struct OutputParams {
  TokenTensor out;       // data is written
  float* lse = nullptr;  // (n_tokens, n_q_heads), nullable
  std::int64_t lse_token_stride = 0, lse_head_stride = 0;
  float* part_out = nullptr;  // [slot][row][head_dim]
  float* part_lse = nullptr;  // [slot][row]
};

struct WorkParams {
  const WorkItem* items = nullptr;
  ScheduleHeader* header = nullptr;  // item count, and the counter from which CTAs take items
  Range served_rows{0, kFar};        // items with another number of rows are another kernel's
};

#if defined(__CUDACC__)
// Index of the caller's next item; every CTA stops at its first index past the last item. So the last count of a run is
// n_items + CTAs - 1, and leaves 0 to the next run.
__device__ __forceinline__ int claim_item(const WorkParams& work) {
  const int count = atomicAdd(&work.header->next_item, 1);
  if (count == work.header->n_items + static_cast<int>(gridDim.x) - 1) work.header->next_item = 0;
  return count;
}

// From an index that the caller has claimed: the first one of the kernel's own items, or one past the last.
__device__ __forceinline__ int first_served_item(const WorkParams& work, int index) {
  while (index < work.header->n_items && !work.served_rows.contains(work.items[index].n_rows)) index = claim_item(work);
  return index;
}
#endif

struct AttentionParams {
  TokenTensor q;
  PagedTensor k, v;
  BatchParams batch;
  BiasParams bias;
  OutputParams output;
  WorkParams work;
  FastDiv group;
  int tile_rows = 0;  // of the schedule
  int head_dim = 0;
  float scale_log2 = 0;        // softmax_scale * log2(e)
  bool scale_is_zero = false;  // too small to divide by: q counts as zeros and softmax_scale as 1
  Range visible{-kFar, kFar};
};

// Everything but what a backend with several kernels sets for each: bias.packed_proj, bias.pair_rows, work.served_rows.
AttentionParams make_attention_params(const Problem& problem, const Tensors& tensors, const Plan& plan,
                                      const CallMemory& memory);
BatchParams make_batch_params(const Problem& problem, const Tensors& tensors);

}  // namespace flashrel::gpu
