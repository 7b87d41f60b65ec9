// One consumer warp. The two warpgroups take the tiles of an item in turns: S^T = K Q^T (+ bias), softmax down the columns,
// O^T += V^T P^T. Both pass through every stage, so that a stage is free when all eight warps have released it.
//
// REGISTERS of a lane at 72 rows (200): scores 36, output 72, references and sums 36, the rest addresses and state.
#pragma once

#include <cstdint>

#include "backend/sm90/decode/bias.cuh"
#include "backend/sm90/decode/epilogue.cuh"
#include "backend/sm90/decode/kernel_params.hpp"
#include "backend/sm90/decode/merge.cuh"
#include "backend/sm90/decode/shared.cuh"
#include "backend/sm90/decode/softmax.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/stmatrix.cuh"
#include "gpu/wgmma_shared.cuh"

namespace flashrel::sm90::decode {

template <class T, int kRows, Bias kBias>
class Consumer {
  static constexpr int kBlocks = kRows / 8;

 public:
  // `warp` 0 ... 7, the same in all lanes.
  __device__ __forceinline__ Consumer(const KernelParams& params, Memory<kRows, kBias>& shared, int warp)
      : p_(params), sm_(shared), warp_(warp), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    while (true) {
      gpu::mbarrier_wait(gpu::smem_address(&sm_.full[stage_]), phase_);
      // Broadcast, so that the compiler knows them to be uniform: wgmma in divergent code is serialised.
      const int flags = __shfl_sync(~0u, sm_.tiles[stage_].flags, 0);
      if ((flags & kNoMoreTiles) != 0) break;
      if ((flags & kTileFirst) != 0) open_item();
      if (((flags & kTileOdd) != 0) == (warpgroup() != 0)) use_tile(flags);
      __syncwarp();
      if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.empty[stage_]));
      if (++stage_ == sm_.kStages) stage_ = 0, phase_ ^= 1;
      if ((flags & kTileLast) != 0) close_item();
    }
    merge_parts<T, kRows>(p_, sm_, n_parts_made_, warp_);
  }

 private:
  __device__ __forceinline__ void open_item() {
    ring_ = item_count_ & 1;
    gpu::mbarrier_wait(gpu::smem_address(&sm_.item_full[ring_]), item_count_ >> 1 & 1);
    ++item_count_;
    softmax_.clear(p_.lowest_score);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) o_[0][i] = o_[1][i] = 0;
  }

  __device__ __forceinline__ void close_item() {
    const ItemInfo& item = sm_.items[ring_];
    finish_item<T, kRows>(p_, sm_, item, softmax_, o_, warp_);
    if (item.slot >= 0 && p_.merge.arrived != nullptr) {
      if (threadIdx.x == 0) {  // SYNC: finish_item ends with a barrier of all consumers
        sm_.parts[n_parts_made_] = item;
        sm_.arrived_before[n_parts_made_] = arrive_part(p_, item);
      }
      ++n_parts_made_;
    }
    gpu::mbarrier_arrive(gpu::smem_address(&sm_.item_empty[ring_]));
  }

  __device__ __forceinline__ void use_tile(int flags) {
    const bool biased = kBias != Bias::kNone && (flags & kTileBiased) != 0;
    const int key = warp_ % 4 * 16 + lane_ / 4, shift = flags >> kBiasShiftBit;
    if constexpr (is_fused(kBias))
      if (biased)
        bias_scores<T, kRows, rel_steps(kBias)>(s_, sm_.bias.proj[stage_][0], sm_.bias.rel[ring_][0], sm_.bias.factor[ring_],
                                                p_.group_log2, key, shift);
    if constexpr (kBias == Bias::kLogits)
      if (biased) logits_scores<T, kRows>(s_, sm_.bias.logits[stage_], p_.inverse_scale, p_.group_log2, key, shift);
    gpu::wgmma_fence();
    multiply_qk(biased);
    gpu::wgmma_commit();
    gpu::wgmma_wait<0>();
    if ((flags & kTileMasked) != 0) {
      mask_scores();
      clear_hidden_values();
    }
    // The vote is cheap and maxima seldom rise once a row has seen a few tiles.
    if (gpu::named_barrier_any(barrier(), 128, softmax_.grew(s_, p_.slack))) {
      share_maxima();
      gpu::named_barrier_sync(barrier(), 128);
      softmax_.follow(sm_.warp_max[warpgroup()], o_, p_.scale_log2, lane_);
    }
    softmax_.exponentiate(s_, p_.scale_log2);
    store_probabilities();
    gpu::fence_async_proxy();  // SYNC: P^T and cleared rows of V before the products below, through the barrier
    gpu::named_barrier_sync(barrier(), 128);
    gpu::wgmma_fence();
    multiply_pv();
    gpu::wgmma_commit();
    gpu::wgmma_wait<0>();
  }

  // ---------------------------------------------------------------- products
  __device__ __forceinline__ void multiply_qk(bool accumulate) {
    // A = K [key][dim]: groups of 8 keys kKeyGroupBytes apart. B = Q [row][dim]: groups of 8 rows one after the other.
    const std::uint64_t k = gpu::wgmma_descriptor(gpu::smem_address(sm_.k[stage_]), 16, kKeyGroupBytes);
    const std::uint64_t q = gpu::wgmma_descriptor(gpu::smem_address(sm_.q[ring_]), 16, 8 * kLineBytes);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i)  // 16 dims are 32 bytes of a line
      gpu::wgmma_64xNx16<T, gpu::BMajor::kK, kRows>(s_, k + (i / 4 * kGroupLineBytes + i % 4 * 32 >> 4),
                                                    q + (i / 4 * kRows * kLineBytes + i % 4 * 32 >> 4), i > 0 || accumulate);
  }

  __device__ __forceinline__ void multiply_pv() {
    // A = V [key][dim], dim contiguous: 64 dims are one line, a product takes two groups of 8 keys. B = P^T [key][row].
    const std::uint64_t v = gpu::wgmma_descriptor(gpu::smem_address(sm_.v[stage_]), 16, kKeyGroupBytes);
    const std::uint64_t p = gpu::wgmma_plain_descriptor(gpu::smem_address(sm_.scratch[warpgroup()]), kRows * 16, 128);
#pragma unroll
    for (int i = 0; i < kTileKeys / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        gpu::wgmma_64xNx16<T, gpu::BMajor::kN, kRows>(o_[half], v + (i * 2 * kKeyGroupBytes + half * kGroupLineBytes >> 4),
                                                      p + (i * 2 * kRows * 16 >> 4), true);
  }

  // ---------------------------------------------------------------- softmax
  __device__ __forceinline__ void mask_scores() {
    const ItemInfo& item = sm_.items[ring_];
    const int first_key = sm_.tiles[stage_].first_key + warp_ % 4 * 16 + lane_ / 4;
    const int first_pos = q_pos(0, {item.q_len, item.kv_len});
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int offset = first_pos + (b * 8 + lane_ % 4 * 2 + i >> p_.group_log2) - first_key;
        const int begin = offset - p_.visible.end + 1;
        const int end = min_of(offset - p_.visible.begin + 1, item.kv_len - first_key);
        if (begin > 0 || end <= 0) s_[b * 4 + i] = kEmptyLse;
        if (begin > 8 || end <= 8) s_[b * 4 + 2 + i] = kEmptyLse;
      }
  }

  // Rows of V that nobody sees may hold anything, and 0 * NaN is NaN. Two threads a key.
  __device__ __forceinline__ void clear_hidden_values() {
    const int thread = threadIdx.x % 128, key = thread / 2, line = thread % 2;
    if (sm_.tiles[stage_].seen.contains(key)) return;
#pragma unroll
    for (int chunk = 0; chunk < 8; ++chunk)
      *reinterpret_cast<uint4*>(sm_.v[stage_] + kv_offset_bytes(kHeadDim, key, line, chunk)) = make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void share_maxima() {
    float* mine = sm_.warp_max[warpgroup()][warp_ % 4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float top = column_max(fmaxf(s_[b * 4 + i], s_[b * 4 + 2 + i]));
        if (lane_ < 4) mine[b * 8 + lane_ * 2 + i] = top;
      }
  }

  __device__ __forceinline__ void store_probabilities() {
    // Lanes 0-7 address the rows of the upper eight keys, lanes 8-15 those of the lower.
    const std::uint32_t p =
        gpu::smem_address(sm_.scratch[warpgroup()]) + (warp_ % 4 * 2 + lane_ / 8 % 2) * kRows * 16 + lane_ % 8 * 16;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      gpu::stmatrix_x2(p + b * 128, gpu::pack2<T>(s_[b * 4], s_[b * 4 + 1]), gpu::pack2<T>(s_[b * 4 + 2], s_[b * 4 + 3]));
  }

  __device__ __forceinline__ int warpgroup() const { return warp_ / 4; }
  __device__ __forceinline__ int barrier() const { return kWarpgroupBarrier + warpgroup(); }

  const KernelParams& p_;
  Memory<kRows, kBias>& sm_;
  const int warp_, lane_;
  int stage_ = 0, phase_ = 0;
  int item_count_ = 0, ring_ = 0;
  int n_parts_made_ = 0;

  float s_[kRows / 2];     // scores, then probabilities, of a tile
  float o_[2][kRows / 2];  // output, not yet divided by the sums: 64 dims a half
  SoftmaxColumns<kRows> softmax_;
};

}  // namespace flashrel::sm90::decode
