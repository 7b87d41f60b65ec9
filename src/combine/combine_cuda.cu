// The merge on the device: one warp a row, parts in the order of their keys, so that the same plan gives the same bits.
#include <cuda_runtime.h>

#include <algorithm>

#include "combine/combine.hpp"
#include "gpu/cuda_status.hpp"
#include "gpu/element.cuh"
#include "gpu/params.hpp"
#include "gpu/schedule.hpp"
#include "index/softmax_state.hpp"

namespace flashrel {
namespace {

using namespace flashrel::gpu;

constexpr int kWarps = 4;
constexpr int kPerLane = 4;  // columns that a lane merges at once
// Parts that are read before any is added. Four of a 16-bit type spill on sm_80.
template <class Part>
constexpr int kPartsAtOnce = sizeof(Part) == 4 ? 4 : 2;

// Largest of both; NaN when either is NaN.
__device__ float max_or_nan(float x, float y) { return x >= y || x != x ? x : y; }

__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = max_or_nan(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// The parts of one row: part i has its lse at lse[i * lse_stride], its output row at out[i * out_stride].
template <class Part>
struct RowParts {
  const float* lse;
  const Part* out;
  std::int64_t lse_stride, out_stride;
  int n_parts;
};

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Merges a row with one warp; returns its lse. `store(column, value)` takes every column of [0, n_columns).
// Several parts are read at a time: one after the other, 50 parts would be 50 trips to memory.
template <class Part, class Store>
__device__ float merge_row(const RowParts<Part>& parts, int n_columns, Store&& store) {
  constexpr int kAtOnce = kPartsAtOnce<Part>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float max_lse = kEmptyLse;
  for (int i = lane; i < parts.n_parts; i += 32) max_lse = max_or_nan(max_lse, parts.lse[i * parts.lse_stride]);
  max_lse = warp_max(max_lse);
  float weights = 0;
  for (int i = lane; i < parts.n_parts; i += 32) weights += part_weight(parts.lse[i * parts.lse_stride], max_lse);
  weights = warp_sum(weights);
  const float factor = weights == 0.0f ? 0.0f : 1.0f / weights;
  for (int begin = 0; begin < n_columns; begin += 32 * kPerLane) {
    float total[kPerLane] = {};
    for (int first = 0; first < parts.n_parts; first += kAtOnce) {
      // The output of an empty part may hold anything.
      float weight[kAtOnce], value[kAtOnce][kPerLane] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        weight[i] = first + i < parts.n_parts ? part_weight(parts.lse[(first + i) * parts.lse_stride], max_lse) : 0.0f;
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          const int column = begin + lane + 32 * j;
          if (weight[i] != 0.0f && column < n_columns)
            value[i][j] = to_float(parts.out[(first + i) * parts.out_stride + column]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) total[j] += weight[i] * value[i][j];
    }
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (begin + lane + 32 * j < n_columns) store(begin + lane + 32 * j, total[j] * factor);
  }
  return merged_lse(max_lse, weights);
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    combine_kernel(const __grid_constant__ AttentionParams p, const std::int32_t* __restrict__ merges, int tile_rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t n_rows = static_cast<std::int64_t>(p.work.header->n_merges) * tile_rows;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; i < n_rows;
       i += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const WorkItem item = p.work.items[merges[i / tile_rows]];
    const int row = static_cast<int>(i % tile_rows);
    if (row >= item.n_rows) continue;
    const std::int64_t first = static_cast<std::int64_t>(item.slot) * tile_rows + row;
    const RowParts<float> parts{p.output.part_lse + first, p.output.part_out + first * p.head_dim, tile_rows,
                                static_cast<std::int64_t>(tile_rows) * p.head_dim, item.n_parts};
    const int packed = item.row_tile * tile_rows + row, token_in_seq = p.group.quotient(packed);
    const std::int64_t token = p.batch.cu_q[item.seq * p.batch.cu_q_stride] + token_in_seq;
    const int group = static_cast<int>(p.group.divisor), head = item.kv_head * group + packed - token_in_seq * group;
    T* out = static_cast<T*>(const_cast<void*>(p.output.out.data)) + token * p.output.out.token_stride +
             head * p.output.out.head_stride;
    const float lse = merge_row(parts, p.head_dim, [&](int column, float value) { out[column] = from_float<T>(value); });
    if (p.output.lse != nullptr && lane == 0)
      p.output.lse[token * p.output.lse_token_stride + head * p.output.lse_head_stride] = lse;
  }
}

template <class Part, class T>
__global__ void __launch_bounds__(32 * kWarps) merge_kernel(const __grid_constant__ MergeProblem p, const MergeTensors t) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; i < p.n_rows * p.n_heads;
       i += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t row = i / p.n_heads, head = i % p.n_heads;
    const RowParts<Part> parts{t.parts_lse + row * p.part_lse_row + head * p.part_lse_head,
                               static_cast<const Part*>(t.parts_out) + row * p.part_row + head * p.part_head, p.part_lse_stride,
                               p.part_stride, static_cast<int>(p.n_parts)};
    T* out = static_cast<T*>(t.out) + row * p.out_row + head * p.out_head;
    const float lse = merge_row(parts, p.head_dim, [&](int column, float value) { out[column] = from_float<T>(value); });
    if (t.lse != nullptr && lane == 0) t.lse[row * p.lse_row + head * p.lse_head] = lse;
  }
}

// Enough blocks to fill any GPU of today; the kernels stride over their rows.
unsigned grid_for(std::int64_t n_rows) {
  return static_cast<unsigned>(clamp_to<std::int64_t>(ceil_div<std::int64_t>(n_rows, kWarps), 1, 2048));
}

// body(element of the dtype): the three floating-point types.
template <class Body>
void with_float_type(DType dtype, Body&& body) {
  if (dtype == DType::kBFloat16)
    body(__nv_bfloat16{});
  else if (dtype == DType::kFloat16)
    body(__half{});
  else
    body(float{});
}

}  // namespace

Status combine_parts_cuda(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory,
                          void* stream) {
  const AttentionParams params = make_attention_params(problem, tensors, plan, memory);
  const auto* merges = plan.schedule_memory.at<std::int32_t>(memory.schedule, kMergeListEntry);
  const unsigned grid = grid_for(plan.bounds.n_slots / 2 * plan.policy.tile_rows);
  with_float_type(problem.dtype, [&](auto type) {
    combine_kernel<decltype(type)>
        <<<grid, 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(params, merges, plan.policy.tile_rows);
  });
  return launch_status("combine_kernel");
}

Status merge_cuda(const MergeProblem& problem, const MergeTensors& tensors, void* stream) {
  const unsigned grid = grid_for(problem.n_rows * problem.n_heads);
  with_float_type(problem.parts_dtype, [&](auto part) {
    with_float_type(problem.out_dtype, [&](auto out) {
      merge_kernel<decltype(part), decltype(out)>
          <<<grid, 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(problem, tensors);
    });
  });
  return launch_status("merge_kernel");
}

}  // namespace flashrel
