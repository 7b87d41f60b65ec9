// Two loader warps bring every job into shared memory by TMA, one lane a box: one Q, rel and K, the other V. The cleaner warp
// zeroes the rows of V that nobody sees, because 0 * NaN is NaN.
#pragma once

#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/tma.cuh"
#include "index/pages.hpp"

namespace flashrel::sm90::prefill {

class Loader {
 public:
  __device__ __forceinline__ Loader(const KernelParams& params, Shared& shared)
      : p_(params), sm_(shared), lane_(threadIdx.x % 32) {}

  // Q and rel, then K from the last tile to the first.
  __device__ __forceinline__ void run_keys(bool with_rel) {
    for (int job_idx = 0;; ++job_idx) {
      const Job& job = open_job(job_idx);
      if (job.n_rows == 0) return;
      if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.job_taken));
      Place place = find_box(job, job.tiles.end - 1);
      load_q(job, job_idx, with_rel);
      const int first = job.tiles.begin;
      for (int tile = job.tiles.end - 1; tile >= first; --tile) {
        const Place next = find_box(job, tile - 1);  // page numbers are read one step before they are needed
        load_k(job, place);
        place = next;
      }
    }
  }

  // V from the last tile to the first.
  __device__ __forceinline__ void run_values() {
    for (int job_idx = 0;; ++job_idx) {
      const Job& job = open_job(job_idx);
      if (job.n_rows == 0) break;
      Place place = find_box(job, job.tiles.end - 1);
      const int first = job.tiles.begin;  // a register: the ring entry may change as soon as the last tile is on its way
      for (int tile = job.tiles.end - 1; tile >= first; --tile) {
        const Place next = find_box(job, tile - 1);
        load_v(job, tile, place);
        place = next;
      }
    }
    stop_cleaner();
  }

 private:
  __device__ __forceinline__ const Job& open_job(int job_idx) const {
    gpu::mbarrier_wait(gpu::smem_address(&sm_.job_full[job_idx % kJobRing]), job_idx / kJobRing & 1);
    return sm_.jobs[job_idx % kJobRing];
  }

  // Where this lane's box of a key tile comes from.
  struct Place {
    int page = 0, slot = 0;
  };

  __device__ __forceinline__ Place find_box(const Job& job, int tile) const {
    Place place{p_.zero_page, 0};
    if (tile < job.tiles.begin || lane_ >= p_.n_boxes) return place;
    const Box box = tile_box(tile, lane_, p_.keys_per_box, p_.batch.page_size, job.seen);
    place.slot = box.slot;
    if (!box.needed || box.entry >= p_.batch.max_pages) return place;
    const int page = p_.batch.block_table[job.seq * p_.batch.table_seq_stride + box.entry * p_.batch.table_page_stride];
    if (page_in_cache(page, p_.batch.n_pages)) place.page = page;
    return place;
  }

  __device__ __forceinline__ void load_q(const Job& job, int job_idx, bool with_rel) {
    const std::uint32_t full = gpu::smem_address(&sm_.q_full);
    gpu::mbarrier_wait(gpu::smem_address(&sm_.q_empty), (job_idx & 1) ^ 1);
    if (lane_ == 0) {
      gpu::mbarrier_arrive_expect(full, with_rel ? kQTileBytes + kRelTileBytes : kQTileBytes);
      const int head = job.kv_head * p_.group;
      gpu::tma_load_4d(gpu::smem_address(sm_.q), p_.q, full, 0, head, job.first_token, 0);
      if (with_rel) gpu::tma_load_3d(gpu::smem_address(sm_.rel), p_.rel, full, 0, head, job.first_token);
    }
  }

  // This lane's box of one K or V tile; its bytes count on `bar`.
  __device__ __forceinline__ void load_box(std::uint32_t tile_smem, const CUtensorMap& map, std::uint32_t bar, int x,
                                           Place place) {
    if (lane_ < p_.n_boxes) {
      const std::uint32_t smem = tile_smem + lane_ * p_.keys_per_box * (kKeyGroupBytes / kKeysPerGroup);
      gpu::tma_load_5d(smem, map, bar, x, 0, 0, place.slot / kKeysPerGroup, place.page);
    }
  }

  __device__ __forceinline__ void load_k(const Job& job, Place place) {
    const int stage = n_tiles_ % kStages;
    const std::uint32_t full = gpu::smem_address(&sm_.k_full[stage]);
    gpu::mbarrier_wait(gpu::smem_address(&sm_.k_empty[stage]), (n_tiles_ / kStages & 1) ^ 1);
    if (lane_ == 0) gpu::mbarrier_arrive_expect(full, kKvTileBytes);
    __syncwarp();  // SYNC: bytes are announced before the first copy may bring any
    load_box(gpu::smem_address(sm_.k[stage]), p_.k, full, job.kv_head * p_.k_head_stride, place);
    ++n_tiles_;
  }

  __device__ __forceinline__ void load_v(const Job& job, int tile, Place place) {
    const int stage = n_tiles_ % kStages;
    std::uint32_t full = gpu::smem_address(&sm_.v_full[stage]);
    gpu::mbarrier_wait(gpu::smem_address(&sm_.v_empty[stage]), (n_tiles_ / kStages & 1) ^ 1);
    const Range seen = tile_seen(tile, job.seen);
    if (seen.size() < kTileKeys) {  // the tile goes through the cleaner
      full = gpu::smem_address(&sm_.dirty_full);
      gpu::mbarrier_wait(gpu::smem_address(&sm_.dirty_empty), (n_dirty_ & 1) ^ 1);
      if (lane_ == 0) sm_.dirty = {stage, seen};
      ++n_dirty_;
    }
    if (lane_ == 0) gpu::mbarrier_arrive_expect(full, kKvTileBytes);
    __syncwarp();  // SYNC: as in load_k
    load_box(gpu::smem_address(sm_.v[stage]), p_.v, full, job.kv_head * p_.v_head_stride, place);
    ++n_tiles_;
  }

  __device__ __forceinline__ void stop_cleaner() {
    gpu::mbarrier_wait(gpu::smem_address(&sm_.dirty_empty), (n_dirty_ & 1) ^ 1);
    if (lane_ == 0) {
      sm_.dirty.stage = -1;
      gpu::mbarrier_arrive(gpu::smem_address(&sm_.dirty_full));
    }
  }

  const KernelParams& p_;
  Shared& sm_;
  const int lane_;
  std::uint32_t n_tiles_ = 0, n_dirty_ = 0;  // so far; stage = n % kStages, phase = n / kStages & 1
};

__device__ __forceinline__ void cleaner_warp(Shared& sm) {
  const int lane = threadIdx.x % 32;
  const int row_in_pair = lane / 16, line = lane / 8 % 2, chunk = lane % 8;
  for (int n = 0;; ++n) {
    gpu::mbarrier_wait(gpu::smem_address(&sm.dirty_full), n & 1);
    const DirtyTile tile = sm.dirty;
    if (tile.stage < 0) return;
    for (int pair = 0; pair < kTileKeys; pair += 2) {
      const int row = pair + row_in_pair;
      if (!tile.seen.contains(row))
        *reinterpret_cast<uint4*>(sm.v[tile.stage] + kv_offset_bytes(row, line, chunk)) = make_uint4(0, 0, 0, 0);
    }
    gpu::fence_async_proxy();  // SYNC: these writes before the consumers' wgmma reads, through v_full
    __syncwarp();
    if (lane == 0) {
      gpu::mbarrier_arrive(gpu::smem_address(&sm.v_full[tile.stage]));
      gpu::mbarrier_arrive(gpu::smem_address(&sm.dirty_empty));
    }
  }
}

}  // namespace flashrel::sm90::prefill
