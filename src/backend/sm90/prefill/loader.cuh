// Two loader warps bring every job into shared memory by TMA, one lane a box: one Q, rel and K, the other V. A third warp
// follows: it brings rel_logits, and zeroes the rows of V that nobody sees, because 0 * NaN is NaN.
#pragma once

#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/prefill/logits.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/tma.cuh"
#include "index/pages.hpp"

namespace flashrel::sm90::prefill {

template <class Sm>
class Loader {
  static constexpr int kTileKeys = Sm::kKeys, kKvBytes = Sm::kKvBytes;

 public:
  __device__ __forceinline__ Loader(const KernelParams& params, Sm& shared)
      : p_(params), sm_(shared), lane_(threadIdx.x % 32) {}

  // Q and `rel_bytes` of rel, then K from the last tile to the first.
  __device__ __forceinline__ void run_keys(int rel_bytes) {
    for (int job_idx = 0;; ++job_idx) {
      const Job& job = open_job(job_idx);
      if (job.n_rows == 0) return;
      if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.job_taken));
      load_q(job, job_idx, rel_bytes);
      Place place = find_box(job, job.tiles.end - 1);
      const int first = job.tiles.begin;  // a register: the ring entry may change as soon as the last tile is on its way
      for (int tile = job.tiles.end - 1; tile >= first; --tile) {
        load_k(job, tile, place);
        if (tile > first) place = find_box(job, tile - 1);  // page numbers are there before there is room for the tile
      }
    }
  }

  // V from the last tile to the first.
  __device__ __forceinline__ void run_values() {
    for (int job_idx = 0;; ++job_idx) {
      const Job& job = open_job(job_idx);
      if (job.n_rows == 0) return;
      Place place = find_box(job, job.tiles.end - 1);
      const int first = job.tiles.begin;
      for (int tile = job.tiles.end - 1; tile >= first; --tile) {
        load_v(job, tile, place);
        if (tile > first) place = find_box(job, tile - 1);
      }
    }
  }

 private:
  __device__ __forceinline__ const Job& open_job(int job_idx) const {
    gpu::mbarrier_wait(gpu::smem_address(&sm_.job_full[job_idx % kJobRing]), job_idx / kJobRing & 1);
    return sm_.jobs[job_idx % kJobRing];
  }

  // Where this lane's box of a key tile comes from.
  struct Place {
    int page = 0, slot_group = 0;  // kKeysPerGroup slots each
  };

  __device__ __forceinline__ Place find_box(const Job& job, int tile) const {
    Place place{p_.zero_page, 0};
    if (lane_ >= p_.n_boxes) return place;
    const Box box =
        box_at(tile * kTileKeys + lane_ * p_.keys_per_box, p_.keys_per_box, p_.batch.page_size, job.seen, job.first_key);
    place.slot_group = box.slot / kKeysPerGroup;
    if (!box.needed || box.entry >= p_.batch.max_pages) return place;
    const int page = p_.batch.block_table[job.seq * p_.batch.table_seq_stride + box.entry * p_.batch.table_page_stride];
    if (page_in_cache(page, p_.batch.n_pages)) place.page = page;
    return place;
  }

  __device__ __forceinline__ void load_q(const Job& job, int job_idx, int rel_bytes) {
    const std::uint32_t full = gpu::smem_address(&sm_.q_full);
    gpu::mbarrier_wait(gpu::smem_address(&sm_.q_empty), (job_idx & 1) ^ 1);
    if (lane_ == 0) {
      gpu::mbarrier_arrive_expect(full, sizeof(sm_.q) + rel_bytes);
      const int head = job.kv_head * p_.group;
      gpu::tma_load_4d(gpu::smem_address(sm_.q), p_.q, full, 0, head, job.first_token, 0);
      if (rel_bytes > 0) gpu::tma_load_3d(gpu::smem_address(sm_.rel()), p_.rel, full, 0, head, job.first_token);
    }
  }

  // This lane's box of one K or V tile of `n_boxes`; its bytes count on `bar`.
  __device__ __forceinline__ void load_box(std::uint32_t tile_smem, const CUtensorMap& map, std::uint32_t bar, int x,
                                           Place place, int n_boxes) {
    if (lane_ < n_boxes) {
      const std::uint32_t smem = tile_smem + lane_ * p_.keys_per_box * (kKvBytes / kTileKeys);
      gpu::tma_load_5d(smem, map, bar, x, 0, 0, place.slot_group, place.page);
    }
  }

  // What a copy needs is read before the wait for room: nothing but the copy stands behind it.
  __device__ __forceinline__ void load_k(const Job& job, int tile, Place place) {
    const int stage = n_tiles_ % kStages;
    const std::uint32_t full = gpu::smem_address(&sm_.k_full[stage]);
    const int halved = tile == job.tiles.end - 1 ? job.first_is_half : 0;
    const int x = job.kv_head * p_.k_head_stride;
    gpu::mbarrier_wait(gpu::smem_address(&sm_.k_empty[stage]), (n_tiles_ / kStages & 1) ^ 1);
    if (lane_ == 0) gpu::mbarrier_arrive_expect(full, kKvBytes >> halved);
    __syncwarp();  // SYNC: bytes are announced before the first copy may bring any
    load_box(gpu::smem_address(sm_.k[stage]), p_.k, full, x, place, p_.n_boxes >> halved);
    ++n_tiles_;
  }

  __device__ __forceinline__ void load_v(const Job& job, int tile, Place place) {
    const int stage = n_tiles_ % kStages;
    std::uint32_t full = gpu::smem_address(&sm_.v_full[stage]);
    const Range seen = keys_in_tile(job.seen, tile, kTileKeys);
    const int x = job.kv_head * p_.v_head_stride;
    gpu::mbarrier_wait(gpu::smem_address(&sm_.v_empty[stage]), (n_tiles_ / kStages & 1) ^ 1);
    if (seen.size() < kTileKeys) {  // the tile goes through the follower
      full = gpu::smem_address(&sm_.dirty_full);
      gpu::mbarrier_wait(gpu::smem_address(&sm_.dirty_empty), (n_dirty_ & 1) ^ 1);
      ++n_dirty_;
    }
    if (lane_ == 0) gpu::mbarrier_arrive_expect(full, kKvBytes);
    __syncwarp();  // SYNC: as in load_k
    load_box(gpu::smem_address(sm_.v[stage]), p_.v, full, x, place, p_.n_boxes);
    ++n_tiles_;
  }

  const KernelParams& p_;
  Sm& sm_;
  const int lane_;
  std::uint32_t n_tiles_ = 0, n_dirty_ = 0;  // so far; stage = n % kStages, phase = n / kStages & 1
};

// Follows the loaders from tile to tile: brings the rel_logits of tiles that need them, and zeroes the rows of V that hold keys
// which nobody sees. kLogitBytes: of an entry of rel_logits, 0 in the other modes.
template <class Sm, int kLogitBytes>
class Follower {
  static constexpr int kTileKeys = Sm::kKeys;

 public:
  __device__ __forceinline__ Follower(const KernelParams& params, Sm& shared)
      : p_(params), sm_(shared), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    std::uint32_t n_tiles = 0;
    for (int job_idx = 0;; ++job_idx) {
      const int ring = job_idx % kJobRing;
      gpu::mbarrier_wait(gpu::smem_address(&sm_.job_full[ring]), job_idx / kJobRing & 1);
      const Job& job = sm_.jobs[ring];
      if (job.n_rows == 0) return;
      const int first = job.tiles.begin;
      for (int tile = job.tiles.end - 1; tile >= first; --tile, ++n_tiles) {
        if constexpr (kLogitBytes != 0)
          if (job.loops.biased(tile)) load_logits(job, tile);
        const Range rows = keys_in_tile(job.seen, tile, kTileKeys);
        if (rows.size() < kTileKeys) clean(n_tiles % kStages, rows);
      }
      __syncwarp();  // SYNC: all lanes have read the job
      if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.job_empty[ring]));
    }
  }

 private:
  // The tile's rel_logits: lane w fills the slot of consumer warp w, one box a token. One warpgroup after the other, because a
  // ring of fewer than eight slots gets its next ones only from the first warpgroup of the same tile.
  __device__ __forceinline__ void load_logits(const Job& job, int tile) {
#pragma unroll 1
    for (int first_warp = 0; first_warp < kConsumerWarps; first_warp += kConsumerWarps / 2) {
      if (lane_ / (kConsumerWarps / 2) == first_warp / (kConsumerWarps / 2)) load_slot(job, tile);
      __syncwarp();
    }
    ++n_logits_;
  }
  __device__ __forceinline__ void load_slot(const Job& job, int tile) {
    const int n = n_logits_ * kConsumerWarps + lane_;
    const int turn = p_.logits.n_slots.quotient(n), slot = n - turn * static_cast<int>(p_.logits.n_slots.divisor);
    const std::uint32_t full = gpu::smem_address(&sm_.logits_full[slot]);
    gpu::mbarrier_wait(gpu::smem_address(&sm_.logits_empty[slot]), (turn & 1) ^ 1);
    gpu::mbarrier_arrive_expect(full, p_.logits.slot_bytes);
    const int start = logits_place(job.first_pos, static_cast<int>(p_.rel_zero), lane_, tile, p_.rel_extent,
                                   kChunkBytes / max_of(1, kLogitBytes))
                          .start;
    const int box_bytes = p_.logits.row_bytes << p_.group_log2;
    std::uint32_t target = gpu::smem_address(sm_.bias) + slot * p_.logits.slot_bytes;
#pragma unroll 1
    for (int token = lane_; token < kTileRows >> p_.group_log2; token += kConsumerWarps, target += box_bytes)
      gpu::tma_load_3d(target, p_.logits_map, full, start, job.kv_head * p_.group,
                       (job.first_token + token) * p_.logits.token_step);
  }

  __device__ __forceinline__ void clean(int stage, Range keep) {
    // 16 bytes a lane: two rows of 256 bytes at once, or four of 128.
    constexpr int kRows = 4 / lines_per_row(Sm::kHeadDim);
    const int row_in_turn = lane_ / (32 / kRows), line = kRows == 2 ? lane_ / 8 % 2 : 0, chunk = lane_ % 8;
    gpu::mbarrier_wait(gpu::smem_address(&sm_.dirty_full), n_dirty_ & 1);
    ++n_dirty_;
    for (int turn = 0; turn < kTileKeys; turn += kRows) {
      const int row = turn + row_in_turn;
      if (!keep.contains(row))
        *reinterpret_cast<uint4*>(sm_.v[stage] + kv_offset_bytes(Sm::kHeadDim, row, line, chunk)) = make_uint4(0, 0, 0, 0);
    }
    gpu::fence_async_proxy();  // SYNC: these writes before the consumers' wgmma reads, through v_full
    __syncwarp();
    if (lane_ == 0) {
      gpu::mbarrier_arrive(gpu::smem_address(&sm_.v_full[stage]));
      gpu::mbarrier_arrive(gpu::smem_address(&sm_.dirty_empty));
    }
  }

  const KernelParams& p_;
  Sm& sm_;
  const int lane_;
  std::uint32_t n_dirty_ = 0;
  int n_logits_ = 0;  // tiles with rel_logits so far
};

}  // namespace flashrel::sm90::prefill
