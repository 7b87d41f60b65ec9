// The loader warp brings K and V of every key tile by TMA, one lane a box, and with a bias the run of rel_proj or of rel_logits
// that the tile reads.
#pragma once

#include "backend/sm90/decode/shared.cuh"
#include "backend/sm90/decode/work.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/tma.cuh"
#include "index/pages.hpp"

namespace flashrel::sm90::decode {

template <int kRows, Bias kBias>
class Loader {
 public:
  __device__ __forceinline__ Loader(const KernelParams& params, Memory<kRows, kBias>& shared)
      : p_(params), sm_(shared), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    if (!p_.starts_early) wait_for_kernel_before(), waited_ = true;
    int pages = -1;  // the first 32 of the next item
    if (p_.shares != nullptr) pages = __ldcg(p_.shares[blockIdx.x].pages + lane_);
    ItemReader item(p_);
    if (p_.shares == nullptr) pages = read_pages(table_of(item.seq()), first_entry(item.tiles().begin));
    for (; !item.done(); item.advance()) {
      open_item(item, pages);
      pages = read_pages(table_of(item.next_seq()), first_entry(item.next_tile()));
      item.prepare_next();
      const int n_tiles = max_of(1, tiles_.size());  // an item that sees nothing still is one tile, of hidden keys
      for (int i = 0; i < n_tiles; ++i)
        load_tile(tiles_.begin + i,
                  (i == 0 ? kTileFirst : 0) | (i == n_tiles - 1 ? kTileLast : 0) | (i % 2 != 0 ? kTileOdd : 0));
    }
    end();
  }

 private:
  __device__ __forceinline__ void open_item(const ItemReader& item, int first_pages) {
    const Lengths lengths = item.lengths();
    tiles_ = item.tiles();
    kv_head_ = item.kv_head();
    first_token_ = item.first_token();
    q_len_ = lengths.q_len;
    first_pos_ = q_pos(0, lengths);
    newest_ = lengths.kv_len - lengths.q_len;
    seen_ = visible_keys({0, lengths.q_len}, lengths, p_.visible);
    full_tiles_ = inner_tiles(full_keys({0, lengths.q_len}, lengths, p_.visible), kTileKeys);
    table_ = table_of(item.seq());
    window_ = first_entry(tiles_.begin);
    pages_ = first_pages;
    next_pages_ = read_pages(table_, window_ + 32);
  }

  __device__ __forceinline__ const std::int32_t* table_of(int seq) const {
    return p_.batch.block_table + seq * p_.batch.table_seq_stride;
  }
  __device__ __forceinline__ int first_entry(int tile) const { return p_.batch.page_size.quotient(tile * kTileKeys); }

  // Pages are read 32 entries of the block table at a time, one a lane.
  // Entries that no visible key needs may hold anything; the boxes that they belong to are not loaded.
  __device__ __forceinline__ int read_pages(const std::int32_t* table, int first_entry) const {
    const int entry = first_entry + lane_;
    return entry < p_.batch.max_pages ? table[entry * p_.batch.table_page_stride] : -1;
  }

  // Page number of this lane's box, whose table entry is `entry`; `tile_entry` is that of the tile's first key.
  __device__ __forceinline__ int page_of(int entry, int tile_entry) {
    if (tile_entry - window_ >= 32) {
      window_ += 32;
      pages_ = next_pages_;
      next_pages_ = read_pages(table_, window_ + 32);
    }
    const int near = __shfl_sync(~0u, pages_, entry - window_ & 31), far = __shfl_sync(~0u, next_pages_, entry - window_ & 31);
    const int page = entry - window_ < 32 ? near : far;
    return page_in_cache(page, p_.batch.n_pages) ? page : p_.zero_page;
  }

  __device__ __forceinline__ void load_tile(int tile, int flags) {
    const int first_key = tile * kTileKeys;
    // Lanes 0-15 bring K, lanes 16-31 V.
    const int box = lane_ % 16, key = first_key + box * p_.keys_per_box;
    const int entry = p_.batch.page_size.quotient(key), slot = key - entry * static_cast<int>(p_.batch.page_size.divisor);
    const int page = page_of(entry, __shfl_sync(~0u, entry, 0));
    const bool needed = box < p_.n_boxes && !intersect({key, key + p_.keys_per_box}, seen_).empty();
    const int n_needed = __popc(__ballot_sync(~0u, needed));
    // Smallest distance in the tile; the largest is kTileKeys + q_len - 2 more.
    const int nearest = first_pos_ - (first_key + kTileKeys - 1);
    if (!full_tiles_.contains(tile)) flags |= kTileMasked;
    if (kBias != Bias::kNone && nearest < p_.band.end && nearest + kTileKeys + q_len_ - 1 > p_.band.begin) {
      const int origin = nearest + p_.rel_zero;
      flags |= kTileBiased | origin - bias_begin(origin) << kBiasShiftBit;
    }

    const bool needs_logits = kBias == Bias::kLogits && (flags & kTileBiased) != 0;
    // The newest keys and rel_logits may be what the kernel before writes.
    if (!waited_ && (first_key + kTileKeys > newest_ || needs_logits)) wait_for_kernel_before(), waited_ = true;
    const std::uint32_t full = gpu::smem_address(&sm_.full[stage_]);
    gpu::mbarrier_wait(gpu::smem_address(&sm_.empty[stage_]), phase_ ^ 1);
    if (lane_ == 0) {
      sm_.tiles[stage_] = {first_key, flags, keys_in_tile(seen_, tile, kTileKeys)};
      gpu::mbarrier_arrive_expect(
          full, n_needed * p_.keys_per_box * (kKeyGroupBytes / kKeysPerGroup) + (needs_logits ? p_.logits_bytes : 0));
      if constexpr (is_fused(kBias)) load_proj(flags, nearest);
      if constexpr (kBias == Bias::kLogits)
        if (needs_logits)
          gpu::tma_load_3d(gpu::smem_address(sm_.bias.logits[stage_]), p_.logits, full, bias_begin(nearest + p_.rel_zero),
                           kv_head_ << p_.group_log2, first_token_);
    }
    __syncwarp();  // SYNC: bytes are announced before the first copy may bring any
    if (needed) {
      const bool is_v = lane_ >= 16;
      const std::uint32_t tile_smem = gpu::smem_address(is_v ? sm_.v[stage_] : sm_.k[stage_]);
      gpu::tma_load_5d_once(tile_smem + box * p_.keys_per_box * (kKeyGroupBytes / kKeysPerGroup), is_v ? p_.v : p_.k, full,
                            kv_head_ * (is_v ? p_.v_head_stride : p_.k_head_stride), 0, 0, slot / kKeysPerGroup, page);
    }
    next_stage();
  }

  __device__ __forceinline__ void load_proj(int flags, int nearest) {
    const std::uint32_t raw_full = gpu::smem_address(&sm_.raw_full[stage_]);
    if ((flags & kTileBiased) != 0) {
      gpu::mbarrier_arrive_expect(raw_full, static_cast<int>(sizeof sm_.bias.raw[0]));
#pragma unroll
      for (int step = 0; step < rel_steps(kBias); ++step)
        gpu::tma_load_2d(gpu::smem_address(sm_.bias.raw[stage_][step]), p_.proj, raw_full, bias_begin(nearest + p_.rel_zero),
                         step * kRelDim);
    } else {
      gpu::mbarrier_arrive(raw_full);
    }
  }

  __device__ __forceinline__ void end() {
    gpu::mbarrier_wait(gpu::smem_address(&sm_.empty[stage_]), phase_ ^ 1);
    if (lane_ == 0) {
      sm_.tiles[stage_].flags = kNoMoreTiles;
      gpu::mbarrier_arrive(gpu::smem_address(&sm_.full[stage_]));
      if constexpr (is_fused(kBias)) gpu::mbarrier_arrive(gpu::smem_address(&sm_.raw_full[stage_]));
    }
  }

  __device__ __forceinline__ void next_stage() {
    if (++stage_ == sm_.kStages) stage_ = 0, phase_ ^= 1;
  }

  const KernelParams& p_;
  Memory<kRows, kBias>& sm_;
  const int lane_;
  int stage_ = 0, phase_ = 0;
  bool waited_ = false;  // for the kernel before
  // The item.
  Range tiles_, full_tiles_;  // full tiles hide no pair
  Range seen_;                // keys that some row of the sequence sees
  int kv_head_ = 0, first_token_ = 0, q_len_ = 0, first_pos_ = 0;
  int newest_ = 0;  // keys from here on may have been written by the kernel before
  const std::int32_t* table_ = nullptr;
  int window_ = 0, pages_ = 0, next_pages_ = 0;  // entries [window, window + 64), one a lane and register
};

}  // namespace flashrel::sm90::decode
