// Merge of partial softmax results in host memory: part_weight and merged_lse of index/softmax_state, row by row.
#include <cstddef>
#include <vector>

#include "base/parallel.hpp"
#include "combine/combine.hpp"
#include "index/rows.hpp"
#include "index/schedule.hpp"
#include "index/softmax_state.hpp"

namespace flashrel {
namespace {

// One output row and its parts; strides in elements.
struct MergeRow {
  const void* parts = nullptr;
  DType parts_dtype = DType::kFloat32;
  std::int64_t part_stride = 0;
  const float* part_lse = nullptr;
  std::int64_t part_lse_stride = 0;
  std::int64_t n_parts = 0;
  int head_dim = 0;
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
};

constexpr int kBlock = 128;  // columns summed at a time

// Returns the merged lse.
float merge_row(const MergeRow& m) {
  float max_lse = kEmptyLse, weight_sum = 0;
  for (std::int64_t part = 0; part < m.n_parts; ++part) {
    const float lse = m.part_lse[part * m.part_lse_stride];
    if (!(lse <= max_lse)) max_lse = lse;
  }
  for (std::int64_t part = 0; part < m.n_parts; ++part)
    weight_sum += part_weight(m.part_lse[part * m.part_lse_stride], max_lse);
  for (int begin = 0; begin < m.head_dim; begin += kBlock) {
    const int n = min_of(kBlock, m.head_dim - begin);
    float sum[kBlock] = {};
    for (std::int64_t part = 0; part < m.n_parts; ++part) {
      const float weight = part_weight(m.part_lse[part * m.part_lse_stride], max_lse);
      if (weight == 0.0f) continue;  // the output of an empty part may hold anything
      const std::int64_t at = part * m.part_stride + begin;
      for (int i = 0; i < n; ++i) sum[i] += weight / weight_sum * load_float(m.parts, m.parts_dtype, at + i);
    }
    for (int i = 0; i < n; ++i) store_float(m.out, m.out_dtype, begin + i, sum[i]);
  }
  return merged_lse(max_lse, weight_sum);
}

template <class Pointer>
Pointer* advance(Pointer* base, std::int64_t elements, DType type) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
  return static_cast<Byte*>(base) + elements * static_cast<std::int64_t>(size_of(type));
}

struct Parts {
  const Problem* problem;
  const Tensors* tensors;
  const WorkItem* items;
  const std::int32_t* merges;
  const float* part_out;
  const float* part_lse;
  int tile_rows;
};

// Merges the unit whose first part is this item.
void merge_unit(const Parts& c, const WorkItem& item) {
  const Problem& p = *c.problem;
  const Strides& s = p.strides;
  const std::int64_t first_token = c.tensors->cu_seqlens_q[item.seq * s.cu_q_seq];
  for (int r = 0; r < item.n_rows; ++r) {
    const int row = item.row_tile * c.tile_rows + r;
    const std::int64_t token = first_token + row_token(row, p.group()), head = row_head(row, p.group(), item.kv_head);
    const std::int64_t part_row = static_cast<std::int64_t>(item.slot) * c.tile_rows + r;
    MergeRow m;
    m.parts = c.part_out + part_row * p.head_dim;
    m.part_stride = static_cast<std::int64_t>(c.tile_rows) * p.head_dim;
    m.part_lse = c.part_lse + part_row;
    m.part_lse_stride = c.tile_rows;
    m.n_parts = item.n_parts;
    m.head_dim = p.head_dim;
    m.out = advance(c.tensors->out, token * s.out_token + head * s.out_head, p.dtype);
    m.out_dtype = p.dtype;
    const float lse = merge_row(m);
    if (c.tensors->lse != nullptr) c.tensors->lse[token * s.lse_token + head * s.lse_head] = lse;
  }
}

void merge_listed(void* context, int i) {
  const Parts& c = *static_cast<const Parts*>(context);
  merge_unit(c, c.items[c.merges[i]]);
}

struct PublicMerge {
  const MergeProblem* problem;
  const MergeTensors* tensors;
};

void merge_public_row(const PublicMerge& c, std::int64_t row) {
  const MergeProblem& p = *c.problem;
  for (std::int64_t head = 0; head < p.n_heads; ++head) {
    MergeRow m;
    m.parts = advance(c.tensors->parts_out, row * p.part_row + head * p.part_head, p.parts_dtype);
    m.parts_dtype = p.parts_dtype;
    m.part_stride = p.part_stride;
    m.part_lse = c.tensors->parts_lse + row * p.part_lse_row + head * p.part_lse_head;
    m.part_lse_stride = p.part_lse_stride;
    m.n_parts = p.n_parts;
    m.head_dim = p.head_dim;
    m.out = advance(c.tensors->out, row * p.out_row + head * p.out_head, p.out_dtype);
    m.out_dtype = p.out_dtype;
    const float lse = merge_row(m);
    if (c.tensors->lse != nullptr) c.tensors->lse[row * p.lse_row + head * p.lse_head] = lse;
  }
}

constexpr std::int64_t kRowsPerTask = 64;

void merge_public_rows(void* context, int task) {
  const PublicMerge& c = *static_cast<const PublicMerge*>(context);
  const std::int64_t end = min_of(c.problem->n_rows, (task + 1) * kRowsPerTask);
  for (std::int64_t row = task * kRowsPerTask; row < end; ++row) merge_public_row(c, row);
}

}  // namespace

Status combine_parts_cpu(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory) {
  if (plan.bounds.n_slots == 0) return {};
  Parts parts{&problem,
              &tensors,
              plan.schedule_memory.at<WorkItem>(memory.schedule, kItemsEntry),
              plan.schedule_memory.at<std::int32_t>(memory.schedule, kMergeListEntry),
              plan.workspace.at<float>(memory.workspace, "part_out"),
              plan.workspace.at<float>(memory.workspace, "part_lse"),
              plan.policy.tile_rows};
  const int n_merges = plan.schedule_memory.at<ScheduleHeader>(memory.schedule, kScheduleHeaderEntry)->n_merges;
  parallel_for(n_merges, &merge_listed, &parts);
  return {};
}

Status merge_cpu(const MergeProblem& problem, const MergeTensors& tensors) {
  PublicMerge merge{&problem, &tensors};
  parallel_for(static_cast<int>(ceil_div(problem.n_rows, kRowsPerTask)), &merge_public_rows, &merge);
  return {};
}

}  // namespace flashrel
