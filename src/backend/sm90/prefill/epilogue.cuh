// From one lane's output registers to global memory: out and lse, or a part of them (index/softmax_state.hpp).
#pragma once

#include <cstdint>

#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/softmax.cuh"
#include "gpu/element.cuh"

namespace flashrel::sm90::prefill {

// One of a lane's two rows.
struct RowResult {
  int row;      // packed row of the tile
  float scale;  // 1 / sum of the row, 0 when it saw nothing
  float lse;
};

// `ref_ln`: of the exponent's reference (softmax.cuh), as a natural logarithm.
__device__ __forceinline__ RowResult finish_row(int row, float lane_sum, float ref_ln) {
  const float sum = gpu::quad_sum(lane_sum);
  // Both before the choice, so that it is no branch. The short division has two units of error in its range, far inside which
  // a sum lies.
  const float inverse = __fdividef(1.0f, sum), lse = ref_ln + __logf(sum);
  const bool empty = sum == 0.0f;
  return {row, empty ? 0.0f : inverse, empty ? kEmptyLse : lse};
}

// One row. The four lanes of a row hold columns 8 b + 2 c + {0, 1} of block b (c = lane % 4). Neighbours exchange one of every
// two blocks; then an even lane holds columns 2 c ... 2 c + 3 of block 2 i and an odd one columns 2 c - 2 ... 2 c + 1 of block
// 2 i + 1, and the lanes of a row together write 32 bytes at a time. No branch stands between the exchanges: with branches
// there this took a tenth of the time of a local layer.
// kRow: 0 = row a (registers 4 b + {0, 1}), 1 = row b (4 b + {2, 3}).
template <class T, int kRow, int kDim>
__device__ __forceinline__ void write_out_row(const KernelParams& p, const Job& job, const float (&o)[kDim / 2], RowResult r,
                                              int lane) {
  constexpr int kBlockPairs = kDim / 16;
  const bool odd = lane % 2 != 0;
  uint2 x[kBlockPairs];
#pragma unroll
  for (int i = 0; i < kBlockPairs; ++i) {
    const int reg = i * 8 + kRow * 2;
    const std::uint32_t low = gpu::pack2<T>(o[reg] * r.scale, o[reg + 1] * r.scale);
    const std::uint32_t high = gpu::pack2<T>(o[reg + 4] * r.scale, o[reg + 5] * r.scale);
    const std::uint32_t got = __shfl_xor_sync(~0u, odd ? low : high, 1);
    x[i] = odd ? make_uint2(got, high) : make_uint2(low, got);
  }
  // Addresses before the branch: what they are made of is on its way during the exchanges.
  const std::int64_t token = job.first_token + (r.row >> p.group_log2);
  const std::int64_t head = job.kv_head * p.group + (r.row & (p.group - 1));
  T* out = static_cast<T*>(const_cast<void*>(p.output.out.data)) + token * p.output.out.token_stride +
           head * p.output.out.head_stride + lane % 2 * 8 + lane / 2 % 2 * 4;
  float* lse = p.output.lse + token * p.output.lse_token_stride + head * p.output.lse_head_stride;
  const bool has_lse = p.output.lse != nullptr && lane % 4 == 0;
  if (r.row >= job.n_rows) return;
  if (p.output.out.aligned) {
#pragma unroll
    for (int i = 0; i < kBlockPairs; ++i) *reinterpret_cast<uint2*>(out + i * 16) = x[i];
  } else {
#pragma unroll
    for (int i = 0; i < kBlockPairs; ++i) {
      const T* elements = reinterpret_cast<const T*>(&x[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i * 16 + j] = elements[j];
    }
  }
  if (has_lse) *lse = r.lse;
}

template <int kRow, int kDim>
__device__ __forceinline__ void write_part_row(const KernelParams& p, const Job& job, const float (&o)[kDim / 2], RowResult r,
                                               int lane) {
  if (r.row >= job.n_rows) return;
  const std::int64_t part_row = static_cast<std::int64_t>(job.slot) * kTileRows + r.row;
  float* out = p.output.part_out + part_row * kDim + lane % 4 * 2;
#pragma unroll
  for (int block = 0; block < kDim / 8; ++block) {
    const int reg = block * 4 + kRow * 2;
    *reinterpret_cast<float2*>(out + block * 8) = make_float2(o[reg] * r.scale, o[reg + 1] * r.scale);
  }
  if (lane % 4 == 0) p.output.part_lse[part_row] = r.lse;
}

template <class T, int kDim>
__device__ __forceinline__ void write_rows(const KernelParams& p, const Job& job, const float (&o)[kDim / 2], RowResult a,
                                           RowResult b, int lane) {
  const bool whole = __shfl_sync(~0u, job.slot, 0) < 0;  // uniform to the compiler too: wgmma must not see divergence
  if (whole) {
    write_out_row<T, 0, kDim>(p, job, o, a, lane);
    write_out_row<T, 1, kDim>(p, job, o, b, lane);
  } else {
    write_part_row<0, kDim>(p, job, o, a, lane);
    write_part_row<1, kDim>(p, job, o, b, lane);
  }
}

}  // namespace flashrel::sm90::prefill
