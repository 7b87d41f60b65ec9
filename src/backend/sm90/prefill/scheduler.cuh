// The scheduler warp: claims work items, turns them into jobs for the loader and the consumers, and itself finishes the items
// whose rows see nothing.
#pragma once

#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"
#include "index/softmax_state.hpp"

namespace flashrel::sm90::prefill {

// Zeros and lse = -inf for rows without a visible key.
template <class T, int kDim>
__device__ __forceinline__ void write_empty_rows(const KernelParams& p, const Job& job) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int row = 0; row < job.n_rows; ++row) {
    if (job.slot >= 0) {  // a part: its lse alone says that it is empty
      if (lane == 0) p.output.part_lse[static_cast<std::int64_t>(job.slot) * kTileRows + row] = kEmptyLse;
      continue;
    }
    const std::int64_t token = job.first_token + (row >> p.group_log2);
    const std::int64_t head = job.kv_head * p.group + (row & (p.group - 1));
    T* out = static_cast<T*>(const_cast<void*>(p.output.out.data)) + token * p.output.out.token_stride +
             head * p.output.out.head_stride;
#pragma unroll 1
    for (int i = lane; i < kDim; i += 32) out[i] = T(0.0f);
    if (p.output.lse != nullptr && lane == 0)
      p.output.lse[token * p.output.lse_token_stride + head * p.output.lse_head_stride] = kEmptyLse;
  }
}

// Where the CTAs find their items themselves (schedules_itself), one lane a sequence reads what it knows of it.
struct OwnSequence {
  int begin = 0, end = 0;  // tokens
  int kv_len = 0;
};

// First of all in the kernel: the loads are under way while barriers are made.
__device__ __forceinline__ OwnSequence read_own_sequence(const KernelParams& p) {
  const int seq = threadIdx.x % 32;
  if (!p.schedules_itself || seq >= p.n_seqs) return {};
  return {p.batch.cu_q[seq * p.batch.cu_q_stride], p.batch.cu_q[(seq + 1) * p.batch.cu_q_stride],
          p.batch.kv_lens[seq * p.batch.kv_lens_stride]};
}

// Prefix sums that point past the tensors give an unspecified result, but never an access outside.
__device__ __forceinline__ int rows_there(const KernelParams& p, const Job& job) {
  const int n_tokens = job.first_token < 0 ? 0 : clamp_to(p.n_tokens - job.first_token, 0, kTileRows);
  return min_of(job.n_rows, n_tokens << p.group_log2);
}

// Such a CTA has one item at most, the blockIdx.x-th; no unit is cut. By the warp that loads K, which goes on at once.
template <class T, class Sm>
__device__ __forceinline__ void own_job(const KernelParams& p, Sm& sm, OwnSequence mine) {
  const int lane = threadIdx.x % 32;
  const int index = blockIdx.x, unit = index / p.n_kv_heads;
  const int n_row_tiles = token_tiles(mine.end - mine.begin, p.group_log2);
  int end = n_row_tiles;  // units of sequences 0 ... lane
#pragma unroll 1
  for (int step = 1; step < p.n_seqs; step *= 2) {
    const int before = __shfl_up_sync(~0u, end, step);
    if (lane >= step) end += before;
  }
  const std::uint32_t beyond = __ballot_sync(~0u, unit < end);
  bool exists = beyond != 0;
  const int owner = exists ? __ffs(static_cast<int>(beyond)) - 1 : 0;  // the lane of the unit's sequence makes its job
  Job& job = sm.jobs[0];
  if (exists && lane == owner) {
    const Lengths lengths{mine.end - mine.begin, mine.kv_len};
    const WorkItem item = whole_item(lane, index - unit * p.n_kv_heads, end - 1 - unit, lengths, p.group_log2);
    make_job(item, lengths, mine.begin, {p.group_log2, p.visible, p.band, Sm::kKeys, false}, job);
    job.n_rows = rows_there(p, job);
  }
  __syncwarp();
  if (exists && (job.n_rows == 0 || job.tiles.empty())) {
    write_empty_rows<T, Sm::kHeadDim>(p, job);
    exists = false;
    __syncwarp();
  }
  if (lane == owner) {
    if (exists) gpu::mbarrier_arrive(gpu::smem_address(&sm.job_full[0]));
    const int last = exists ? 1 : 0;  // the end mark
    sm.jobs[last].n_rows = 0;
    gpu::mbarrier_arrive(gpu::smem_address(&sm.job_full[last]));
  }
  __syncwarp();
}

// kHalves: whether the kernel knows half tiles.
template <int kKeys, bool kHalves>
__device__ __forceinline__ void read_job(const KernelParams& p, const WorkItem& item, Job& job) {
  const int seq_begin = p.batch.cu_q[item.seq * p.batch.cu_q_stride];
  const JobRules rules{p.group_log2, p.visible, p.band, kKeys, kHalves && p.windowed};
  make_job(item, p.batch.lengths(item.seq), seq_begin, rules, job);
  job.n_rows = rows_there(p, job);
}

template <class T, bool kHalves, class Sm>
__device__ __forceinline__ void scheduler_warp(const KernelParams& p, Sm& sm) {
  // SYNC: the kernel may have started before the schedule kernel ended (launch.cu). All else that this kernel reads was there
  // before that one began, and nothing but proj is touched before the first job.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int lane = threadIdx.x % 32;
  int item_index = blockIdx.x;
  for (std::uint32_t job_idx = 0;;) {
    Job& job = sm.jobs[job_idx % kJobRing];
    gpu::mbarrier_wait(gpu::smem_address(&sm.job_empty[job_idx % kJobRing]), (job_idx / kJobRing & 1) ^ 1);
    const bool more = item_index < p.work.header->n_items;
    if (lane == 0 && more) read_job<Sm::kKeys, kHalves>(p, p.work.items[item_index], job);
    if (lane == 0 && job_idx == 0) job.first_is_half = 0;  // only a job that follows another begins with half a tile
    if (lane == 0 && !more) job.n_rows = 0;
    __syncwarp();
    if (more && (job.n_rows == 0 || job.tiles.empty())) {
      write_empty_rows<T, Sm::kHeadDim>(p, job);
      __syncwarp();
    } else {
      // The address is computed anew: no register holds it while the job is made.
      if (lane == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm.job_full[gpu::opaque(job_idx) % kJobRing]));
      if (!more) return;
      gpu::mbarrier_wait(gpu::smem_address(&sm.job_taken), job_idx & 1);
      ++job_idx;
    }
    if (lane == 0) {
      // Every item is followed by one count, so the last count of a run is n_items - 1; it leaves 0 to the next run.
      const int count = atomicAdd(&p.work.header->next_item, 1);
      if (count == p.work.header->n_items - 1) p.work.header->next_item = 0;
      item_index = count + static_cast<int>(gridDim.x);
    }
    item_index = __shfl_sync(~0u, item_index, 0);
  }
}

}  // namespace flashrel::sm90::prefill
