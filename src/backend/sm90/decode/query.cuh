// The query warp brings what an item needs beside its tiles, one item ahead of the consumers: Q, rel, the factors of the bias,
// and where the result goes. The bias warp turns rel_proj's run of a tile from [d_rel][entry] into [entry][d_rel], the order in
// which one mma.sync reads it.
#pragma once

#include "backend/sm90/decode/shared.cuh"
#include "backend/sm90/decode/work.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/stmatrix.cuh"
#include "gpu/tma.cuh"

namespace flashrel::sm90::decode {

template <int kRows, Bias kBias>
__device__ __forceinline__ void query_warp(const KernelParams& p, Memory<kRows, kBias>& sm) {
  const int lane = threadIdx.x % 32;
  wait_for_kernel_before();
  let_next_kernel_start();
  int n = 0;
  for (ItemReader item(p); !item.done(); item.advance(), ++n) {
    const int ring = n % 2, first_token = item.first_token();
    const Lengths lengths = item.lengths();
    const std::uint32_t full = gpu::smem_address(&sm.item_full[ring]);
    // Prefix sums that point past the tensors give an unspecified result, but never an access outside.
    const int n_tokens_there = first_token < 0 ? 0 : clamp_to(p.n_tokens - first_token, 0, kRows);
    ItemInfo info{min_of(min_of(item.n_rows(), kRows), n_tokens_there << p.group_log2),
                  lengths.q_len,
                  lengths.kv_len,
                  first_token,
                  item.kv_head(),
                  item.slot(),
                  item.n_parts(),
                  item.part()};
    gpu::mbarrier_wait(gpu::smem_address(&sm.item_empty[ring]), (n / 2 & 1) ^ 1);
    if (lane == 0) {
      gpu::mbarrier_expect(full, p.q_bytes + p.rel_bytes);
      const int head = info.kv_head << p.group_log2;
#pragma unroll
      for (int line = 0; line < kLinesPerRow; ++line)
        gpu::tma_load_4d(gpu::smem_address(sm.q[ring]) + line * kRows * kLineBytes, p.q, full, 0, head, first_token, line);
#pragma unroll
      for (int step = 0; step < rel_steps(kBias); ++step)
        if constexpr (is_fused(kBias))
          gpu::tma_load_3d(gpu::smem_address(sm.bias.rel[ring][step]), p.rel, full, step * kRelDim, head, first_token);
      sm.items[ring] = info;
    }
    if constexpr (is_fused(kBias)) {
      for (int row = lane; row < kRows; row += 32) {
        const int token = row >> p.group_log2;
        float factor = p.inverse_scale;
        if (p.rel_scale != nullptr && token < n_tokens_there) factor *= p.rel_scale[(first_token + token) * p.rel_scale_stride];
        sm.bias.factor[ring][row] = factor;
      }
    }
    gpu::mbarrier_arrive(full);  // every lane has written factors
    item.prepare_next();
  }
}

template <int kRows, Bias kBias>
__device__ __forceinline__ void bias_warp(Memory<kRows, kBias>& sm) {
  constexpr int kEntries = bias_entries(kRows), kBlocks = kEntries / 8;
  const int lane = threadIdx.x % 32;
  // Matrix lane / 8 of a step is half `half` of the 16 values and block `block` of the step's two.
  const int half = lane / 8 % 2, block = lane / 16, row = lane % 8;
  for (int n = 0;; ++n) {
    const int stage = n % sm.kStages;
    gpu::mbarrier_wait(gpu::smem_address(&sm.raw_full[stage]), n / sm.kStages & 1);
    const int flags = sm.tiles[stage].flags;
    if ((flags & kTileBiased) != 0) {
#pragma unroll
      for (int step = 0; step < rel_steps(kBias); ++step) {
        const std::uint32_t raw = gpu::smem_address(sm.bias.raw[stage][step]) + (half * 8 + row) * kEntries * 2;
        const std::uint32_t proj = gpu::smem_address(sm.bias.proj[stage][step]) + row * kRelRowBytes + half * 16;
#pragma unroll
        for (int first = 0; first < kBlocks; first += 2) {
          const int mine = min_of(first + block, kBlocks - 1);  // the last block twice when their number is odd
          std::uint32_t x[4];
          gpu::ldmatrix_x4_trans(x, raw + mine * 16);
          gpu::stmatrix_x4(proj + mine * 8 * kRelRowBytes, x);
        }
      }
    }
    __syncwarp();
    if (lane == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm.full[stage]));
    if ((flags & kNoMoreTiles) != 0) return;
  }
}

}  // namespace flashrel::sm90::decode
