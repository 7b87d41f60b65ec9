// The end of an item: the two warpgroups have each seen every other tile; their halves meet in shared memory, a few columns at
// a time, one warp a row, and go to out and lse or to a part of them (index/softmax_state.hpp).
#pragma once

#include <cstdint>

#include "backend/sm90/decode/kernel_params.hpp"
#include "backend/sm90/decode/softmax.cuh"
#include "gpu/element.cuh"

namespace flashrel::sm90::decode {

// Four neighbouring columns of one row of an item, from `column` on, to out.
template <class T>
__device__ __forceinline__ void write_out(const KernelParams& p, const ItemInfo& item, int row, int column, float4 o) {
  const std::int64_t token = item.first_token + (row >> p.group_log2);
  const std::int64_t head = (item.kv_head << p.group_log2) + (row & ((1 << p.group_log2) - 1));
  T* out = static_cast<T*>(const_cast<void*>(p.output.out.data)) + token * p.output.out.token_stride +
           head * p.output.out.head_stride + column;
  const uint2 packed = make_uint2(gpu::pack2<T>(o.x, o.y), gpu::pack2<T>(o.z, o.w));
  if (p.output.out.aligned) {
    *reinterpret_cast<uint2*>(out) = packed;
  } else {
    const T* elements = reinterpret_cast<const T*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = elements[i];
  }
}

// By one lane a row.
__device__ __forceinline__ void write_lse(const KernelParams& p, const ItemInfo& item, int row, float lse) {
  if (p.output.lse == nullptr) return;
  const std::int64_t token = item.first_token + (row >> p.group_log2);
  const std::int64_t head = (item.kv_head << p.group_log2) + (row & ((1 << p.group_log2) - 1));
  p.output.lse[token * p.output.lse_token_stride + head * p.output.lse_head_stride] = lse;
}

// One row of an item by a warp: four neighbouring columns a lane.
template <class T, int kRows>
__device__ __forceinline__ void write_row(const KernelParams& p, const ItemInfo& item, int row, float4 o, float lse, int lane) {
  if (item.slot >= 0) {
    const std::int64_t part_row = static_cast<std::int64_t>(item.slot) * kRows + row;
    __stcg(reinterpret_cast<float4*>(p.output.part_out + part_row * kHeadDim) + lane, o);
    if (lane == 0) __stcg(p.output.part_lse + part_row, lse);
  } else {
    write_out<T>(p, item, row, lane * 4, o);
    if (lane == 0) write_lse(p, item, row, lse);
  }
}

// By all consumer warps. o: 128 dims (64 a half) x kRows of this warpgroup.
template <class T, int kRows>
__device__ __forceinline__ void finish_item(const KernelParams& p, Shared<kRows>& sm, const ItemInfo& item,
                                            const SoftmaxColumns<kRows>& softmax, const float (&o)[2][kRows / 2], int warp) {
  constexpr int kExchange = exchange_rows(kRows);
  const auto half = [&sm](int warpgroup) { return reinterpret_cast<float*>(sm.scratch[warpgroup]); };
  const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4, group = warp / 4, w = warp % 4;
  float* mine = half(group);
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float sum = column_sum(softmax.sum[i]);
    const int column = i / 2 * 8 + c * 2 + i % 2;
    if (r == 0) sm.warp_sum[group][w][column] = sum;
    if (r == 0 && w == 0) sm.reference[group][column] = softmax.reference[i];
  }
#pragma unroll
  for (int first = 0; first < kRows; first += kExchange) {
#pragma unroll
    for (int b = first / 8; b < min_of(first + kExchange, kRows) / 8; ++b)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        // Register i % 4 of half i / 4.
        const int row = b * 8 - first + c * 2 + i % 2, dim = i / 4 * 64 + w * 16 + i % 4 / 2 * 8 + r;
        mine[row * kHeadDim + (dim ^ (row / 2 % 4 * 8))] = o[i / 4][b * 4 + i % 4];
      }
    gpu::named_barrier_sync(kConsumerBarrier, kConsumerWarps * 32);
#pragma unroll
    for (int i = 0; i < kExchange / 8; ++i) {
      const int at = i * 8 + warp, row = first + at;
      if (row >= item.n_rows) continue;
      const float ref_a = sm.reference[0][row], ref_b = sm.reference[1][row], top = fmaxf(ref_a, ref_b);
      const float keep_a = gpu::exp2_approx((ref_a - top) * p.scale_log2),
                  keep_b = gpu::exp2_approx((ref_b - top) * p.scale_log2);
      float sum_a = 0, sum_b = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) sum_a += sm.warp_sum[0][k][row], sum_b += sm.warp_sum[1][k][row];
      const float sum = keep_a * sum_a + keep_b * sum_b;
      const bool empty = sum == 0.0f;
      const float inverse = empty ? 0.0f : 1.0f / sum;
      const int column = lane * 4 ^ (at / 2 % 4 * 8);
      const float4 a = *reinterpret_cast<const float4*>(half(0) + at * kHeadDim + column);
      const float4 b = *reinterpret_cast<const float4*>(half(1) + at * kHeadDim + column);
      const float factor_a = keep_a * inverse, factor_b = keep_b * inverse;
      write_row<T, kRows>(p, item, row,
                          make_float4(factor_a * a.x + factor_b * b.x, factor_a * a.y + factor_b * b.y,
                                      factor_a * a.z + factor_b * b.z, factor_a * a.w + factor_b * b.w),
                          empty ? kEmptyLse : top * p.scale + __logf(sum), lane);
    }
    gpu::named_barrier_sync(kConsumerBarrier, kConsumerWarps * 32);
  }
}

}  // namespace flashrel::sm90::decode
