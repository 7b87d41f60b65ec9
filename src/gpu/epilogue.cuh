// Results of finished rows: out and lse for items of one part, the workspace's part buffers for the others.
#pragma once

#include "gpu/element.cuh"
#include "gpu/online_softmax.cuh"
#include "gpu/params.hpp"
#include "gpu/rows.cuh"

namespace flashrel::gpu {

// lse of row `row` of the item's tile; one lane a row calls it.
__device__ __forceinline__ void store_lse(const OutputParams& p, const Item& item, const RowInfo& info, int row, int tile_rows,
                                          float lse) {
  if (info.token < 0) return;
  if (item.work.slot >= 0)
    p.part_lse[static_cast<std::int64_t>(item.work.slot) * tile_rows + row] = lse;
  else if (p.lse != nullptr)
    p.lse[info.token * p.lse_token_stride + info.head * p.lse_head_stride] = lse;
}

// First element of the row's part in the workspace.
__device__ __forceinline__ float* part_row(const AttentionParams& p, const Item& item, int row, int tile_rows) {
  return p.output.part_out + (static_cast<std::int64_t>(item.work.slot) * tile_rows + row) * p.head_dim;
}

template <class T>
__device__ __forceinline__ T* out_row(const OutputParams& p, const RowInfo& info) {
  return static_cast<T*>(const_cast<void*>(p.out.data)) + info.token * p.out.token_stride + info.head * p.out.head_stride;
}

// Writes 8 neighbouring elements of an output row.
template <class T>
__device__ __forceinline__ void store_out_chunk(T* destination, uint4 packed, bool aligned) {
  if (aligned) {
    *reinterpret_cast<uint4*>(destination) = packed;
    return;
  }
  alignas(16) T values[8];
  *reinterpret_cast<uint4*>(values) = packed;
#pragma unroll
  for (int i = 0; i < 8; ++i) destination[i] = values[i];
}

}  // namespace flashrel::gpu
