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

__device__ __forceinline__ RowResult finish_row(int row, float lane_sum, float max, float softmax_scale) {
  const float sum = gpu::quad_sum(lane_sum);
  const bool empty = sum == 0.0f;
  return {row, empty ? 0.0f : 1.0f / sum, empty ? kEmptyLse : max * softmax_scale + __logf(sum)};
}

// The four lanes of a row hold columns 8 b + 2 c + {0, 1} of block b (c = lane % 4); after the exchange lane c holds the eight
// columns of block 4 i + c, as packed pairs.
__device__ __forceinline__ void exchange_quad(std::uint32_t (&x)[4], int c) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(~0u, (c & 1) != 0 ? x[i] : x[i + 1], 1);
    if ((c & 1) != 0)
      x[i] = got;
    else
      x[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(~0u, (c & 2) != 0 ? x[i] : x[i + 2], 2);
    if ((c & 2) != 0)
      x[i] = got;
    else
      x[i + 2] = got;
  }
}

// kRow: 0 = row a (registers 4 b + {0, 1}), 1 = row b (4 b + {2, 3}).
template <class T, int kRow, int kDim>
__device__ __forceinline__ void write_out_row(const KernelParams& p, const Job& job, const float (&o)[kDim / 2], RowResult r,
                                              int lane) {
  const int c = lane % 4;
  const bool exists = r.row < job.n_rows;
  const std::int64_t token = job.first_token + (r.row >> p.group_log2);
  const std::int64_t head = job.kv_head * p.group + (r.row & (p.group - 1));
  T* out = static_cast<T*>(const_cast<void*>(p.output.out.data)) + token * p.output.out.token_stride +
           head * p.output.out.head_stride;
#pragma unroll
  for (int part = 0; part < kDim / 32; ++part) {
    std::uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int reg = (part * 4 + i) * 4 + kRow * 2;
      x[i] = gpu::pack2<T>(o[reg] * r.scale, o[reg + 1] * r.scale);
    }
    exchange_quad(x, c);
    T* target = out + (part * 4 + c) * 8;
    if (!exists) continue;
    if (p.output.out.aligned) {
      *reinterpret_cast<uint4*>(target) = make_uint4(x[0], x[1], x[2], x[3]);
    } else {
      const T* elements = reinterpret_cast<const T*>(x);
#pragma unroll
      for (int i = 0; i < 8; ++i) target[i] = elements[i];
    }
  }
  if (p.output.lse != nullptr && c == 0 && exists)
    p.output.lse[token * p.output.lse_token_stride + head * p.output.lse_head_stride] = r.lse;
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
