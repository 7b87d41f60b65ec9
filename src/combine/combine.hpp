// Merge of partial softmax results, outside the backends: one algebra (index/softmax_state), one form per memory.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "base/types.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel {

// Merges the slots of every unit that was cut into parts; called after Backend::launch when plan.bounds.n_slots > 0.
// Reads the schedule and the part buffers of the workspace, writes out and lse.
Status combine_parts_cpu(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory);
Status combine_parts_cuda(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory,
                          void* stream);

// The public merge. Strides in elements; head_dim is contiguous.
struct MergeProblem {
  MemoryKind memory = MemoryKind::kHost;
  DType parts_dtype = DType::kFloat32, out_dtype = DType::kFloat32;
  std::int64_t n_parts = 0, n_rows = 0, n_heads = 0;
  int head_dim = 0;
  std::int64_t part_stride = 0, part_row = 0, part_head = 0;  // of parts_out
  std::int64_t part_lse_stride = 0, part_lse_row = 0, part_lse_head = 0;
  std::int64_t out_row = 0, out_head = 0, lse_row = 0, lse_head = 0;
};
struct MergeTensors {
  const void* parts_out = nullptr;
  const float* parts_lse = nullptr;
  void* out = nullptr;
  float* lse = nullptr;  // optional
};
Status merge_cpu(const MergeProblem& problem, const MergeTensors& tensors);
Status merge_cuda(const MergeProblem& problem, const MergeTensors& tensors, void* stream);

}  // namespace flashrel
