// One consumer warp: S = Q K^T (+ bias), softmax, O += P V over the key tiles of each job, from last to first.
//
// A step issues QK of tile t and then PV of tile t + 1, and does the softmax of t while PV runs. Across jobs the chain does not
// break: QK of the next job's first tile goes out before PV of this job's last one (join_step). In some kernels the two
// warpgroups take turns at the tensor cores (kTakesTurns): a turn ends when both products are issued, so that one warpgroup
// multiplies while the other exponentiates.
//
// REGISTERS of a lane (240): scores 64, output 64, P operands 32, Q operands 32, about 40 of state. With head_dim 64 output and
// Q take half as many; with two steps of rel (tiles of 96 keys, 232 registers) scores 48, P 24, rel 8.
#pragma once

#include <cstdint>

#include "backend/sm90/prefill/bias.cuh"
#include "backend/sm90/prefill/epilogue.cuh"
#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "backend/sm90/prefill/softmax.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/wgmma.cuh"
#include "index/pages.hpp"

namespace flashrel::sm90::prefill {

template <class T, class Bias, class Sm>
class Consumer {
  using Slice = BiasSlice<T, Bias>;
  static constexpr int kHeadDim = Sm::kHeadDim, kTileKeys = Sm::kKeys, kKeyGroupBytes = key_group_bytes(kHeadDim);
  static constexpr bool kBias = Slice::kBiased, kHalves = kKnowsHalves<Bias, Sm::kKeys>;
  // Turns order the products of the two warpgroups. That costs more than it gains with head_dim 64, whose products are half as
  // long, and where products of the fused bias stand in the turn; but the ring of rel_logits relies on turns (logits.cuh).
  static constexpr bool kTakesTurns = kLogitBytes<Bias> != 0 || (kHeadDim == 128 && !kBias);
  // Whether steps without bias and mask guess (softmax.cuh). Beside two steps of rel that spills, and with head_dim 64 and no
  // bias it is slower.
  static constexpr bool kGuesses = kTileKeys == kMaxTileKeys && (kHeadDim == 128 || kBias);

 public:
  // `warp` 0 ... 7, the same in all lanes.
  __device__ __forceinline__ Consumer(const KernelParams& params, Sm& shared, int warp)
      : p_(params), sm_(shared), warp_(warp), lane_(threadIdx.x % 32), bias_(params, shared, warp, lane_) {
    row_a_ = warp_row(warp_, lane_ / 4, p_.group_log2);
    row_b_ = warp_row(warp_, lane_ / 4 + 8, p_.group_log2);
  }

  __device__ __forceinline__ void run() {
    bool more = open_job();
    if (!more) return;
    first_step();
    while (more) {
      visit_tiles();
      more = open_job();
      join_step(more);
    }
  }

 private:
  // ---------------------------------------------------------------- steps
  // The tiles of a job but the first. One loop a kind of tile, not one loop with a choice inside: ptxas takes the choice for
  // divergence (C7520). The masked tiles at the window's far edge are a second turn of the first loop, not more code.
  __device__ __forceinline__ void visit_tiles() {
    --tile_;
#pragma unroll 1
    while (tile_ >= first_tile_) {
#pragma unroll 1
      for (; tile_ >= loops_.masked_to; --tile_) step<true, kBias>();
      if constexpr (kBias) {
#pragma unroll 1
        for (; tile_ >= loops_.biased_to; --tile_) step<false, true>();
      }
      // Jobs of a window are over before guessing pays.
      if constexpr (kGuesses && !kBias) {
#pragma unroll 1
        for (; p_.windowed && tile_ >= loops_.plain_to; --tile_) step<false, false>();
      }
#pragma unroll 1
      for (; tile_ >= loops_.plain_to; --tile_) step<false, false, kGuesses>();
      loops_.masked_to = first_tile_;
    }
  }

  template <bool kMasked, bool kBiased, bool kGuess = false>
  __device__ __forceinline__ void step() {
    issue_products<kBiased>(s_);
    if constexpr (!kGuess) {
      if constexpr (kMasked) mask_scores(s_, seen_columns(row_a_), seen_columns(row_b_));
      softmax_.template follow<kMasked || (kBiased && Slice::kMayBeInfinite)>(s_, p_.scale_log2);
    } else if (!softmax_.guess(s_, p_.scale_log2)) {
      multiply_qk_again();
      softmax_.template follow<false>(s_, p_.scale_log2);
    }
    gpu::wgmma_wait<0>();
    release_v();
    pack_probabilities(s_);
    if (softmax_.moved) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; i += 4) {
        o_[i] *= softmax_.keep_a, o_[i + 1] *= softmax_.keep_a;
        o_[i + 2] *= softmax_.keep_b, o_[i + 3] *= softmax_.keep_b;
      }
    }
  }

  // The very first tile: there is no PV to pair it with.
  __device__ __forceinline__ void first_step() {
    // The fused bias while K is on its way; rel_logits in turn, on which their ring relies.
    constexpr bool kBiasInTurn = kLogitBytes<Bias> != 0;
    if constexpr (!kBiasInTurn) bias_.scores(p_, sm_, s_, tile_, warp_, lane_);
    wait_k();
    // The second warpgroup begins when the first has sent its product, turns or not: side by side they would stay in step.
    if (warpgroup() == 1) gpu::named_barrier_sync(kTurnBarrier + 1, 256);
    if constexpr (kBiasInTurn) bias_.scores(p_, sm_, s_, tile_, warp_, lane_);
    gpu::wgmma_fence();
    multiply_qk(s_, kBias);
    gpu::wgmma_commit();
    if (warpgroup() == 0 || kTakesTurns) gpu::named_barrier_arrive(kTurnBarrier + 1 - warpgroup(), 256);
    gpu::wgmma_wait<0>();
    release_k();
    mask_scores(s_, seen_columns(row_a_), seen_columns(row_b_));
    softmax_.begin(s_, p_.scale_log2);
    pack_probabilities(s_);
    clear_output();
  }

  // First tile of a job, if there is one, together with the last PV of the job before it, whose result is then written.
  __device__ __forceinline__ void join_step(bool more) {
    const SoftmaxRows previous = softmax_;
    if (more && first_is_half_) {
      if constexpr (kHalves) {
        // Not the lower half of s_, where ptxas may find no place for the products of both sizes and serialise all (C7511).
        float half_scores[kTileKeys / 4];
        join_products(half_scores);
      }
    } else if (more) {
      join_products(s_);
    } else {
      wait_v();
      gpu::wgmma_fence();
      multiply_pv();
      gpu::wgmma_commit();
      gpu::wgmma_wait<0>();
      release_v();
    }
    finish_job(job_count_ - 2, previous);  // the newest ring entry is the next job, or the end mark
    clear_output();
  }

  template <int kScores>
  __device__ __forceinline__ void join_products(float (&s)[kScores]) {
    issue_products<kBias>(s);
    mask_scores(s, seen_columns(row_a_), seen_columns(row_b_));
    softmax_.begin(s, p_.scale_log2);
    gpu::wgmma_wait<0>();
    release_v();
    pack_probabilities(s);
  }

  // QK of tile_, or of its first 2 kScores keys, and PV of the tile before it; returns when the scores are there, PV still
  // running.
  template <bool kBiased, int kScores>
  __device__ __forceinline__ void issue_products(float (&s)[kScores]) {
    wait_k();
    take_turn();
    if constexpr (kBiased) bias_.scores(p_, sm_, s, tile_, warp_, lane_);
    gpu::wgmma_fence();
    multiply_qk(s, kBiased);
    gpu::wgmma_commit();
    if constexpr (kBiased) softmax_.know_rows();
    wait_v();
    multiply_pv();
    gpu::wgmma_commit();
    hand_over();
    gpu::wgmma_wait<1>();
    release_k();
  }

  template <int kScores>
  __device__ __forceinline__ void multiply_qk(float (&s)[kScores], bool accumulate) {
    // K as B [key][dim]: groups of 8 keys kKeyGroupBytes apart; 16 dims are 32 bytes of a line.
    const std::uint64_t k = gpu::wgmma_descriptor(gpu::smem_address(sm_.k[0]), 16, kKeyGroupBytes) +
                            static_cast<std::uint64_t>(k_count_ % kStages * (Sm::kKvBytes >> 4));
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i)
      gpu::wgmma_64xNx16<T, gpu::BMajor::kK, 2 * kScores>(s, q_[i], k + (i / 4 * kGroupLineBytes + i % 4 * 32 >> 4),
                                                          i > 0 || accumulate);
  }

  // The scores of tile_, which has neither bias nor mask, again: SoftmaxRows::guess lost them, which hardly ever happens. By
  // this warp alone, from K in global memory (the tile's place in shared memory may hold the next one), and by way of an array
  // in local memory, so that it takes few registers.
  // All rows of the warp take these scores, which differ from the first ones by the order of sums at most.
  __device__ __forceinline__ void multiply_qk_again() {
    const Job& job = sm_.jobs[(job_count_ - 1) % kJobRing];
    float again[kTileKeys / 2];
#pragma unroll 1
    for (int block = 0; block < kTileKeys / kKeysPerGroup; ++block) {
      const T* row = find_key(job, tile_ * kTileKeys + block * kKeysPerGroup + lane_ / 4);
      float scores[4] = {};
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        const auto pair_at = [&](int dim) { return row == nullptr ? 0 : *reinterpret_cast<const std::uint32_t*>(row + dim); };
        const int dim = i * 16 + lane_ % 4 * 2;
        gpu::mma_16x8x16<T>(scores, q_[i], pair_at(dim), pair_at(dim + 8));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) again[block * 4 + i] = scores[i];
    }
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i) s_[i] = again[i];
  }

  // A row of K; nullptr in a page outside the cache, which counts as zeros. `key` counts from the job's first.
  __device__ __forceinline__ const T* find_key(const Job& job, int key) const {
    const auto& batch = p_.batch;
    const Box place = box_at(key, 1, batch.page_size, job.seen, job.first_key);
    if (place.entry >= batch.max_pages) return nullptr;
    const int page = batch.block_table[job.seq * batch.table_seq_stride + place.entry * batch.table_page_stride];
    if (!page_in_cache(page, batch.n_pages)) return nullptr;
    return static_cast<const T*>(p_.k_cache.data) + page * p_.k_cache.page_stride + place.slot * p_.k_cache.slot_stride +
           job.kv_head * p_.k_cache.head_stride;
  }

  __device__ __forceinline__ void multiply_pv() {
    // V as B [key][dim], dim contiguous: 64 dims to the next line, 8 keys to the next group; a product takes two groups.
    const std::uint64_t v = gpu::wgmma_descriptor(gpu::smem_address(sm_.v[0]), kGroupLineBytes, kKeyGroupBytes) +
                            static_cast<std::uint64_t>(v_count_ % kStages * (Sm::kKvBytes >> 4));
#pragma unroll
    for (int i = 0; i < kTileKeys / 16; ++i)
      gpu::wgmma_64xNx16<T, gpu::BMajor::kN, kHeadDim>(o_, p_ops_[i], v + (i * 2 * kKeyGroupBytes >> 4), true);
  }

  // ---------------------------------------------------------------- jobs
  // Reads the next job, its Q and rel rows; false when there is none.
  __device__ __forceinline__ bool open_job() {
    const int ring = job_count_ % kJobRing;
    gpu::mbarrier_wait(gpu::smem_address(&sm_.job_full[ring]), job_count_ / kJobRing & 1);
    const Job& job = sm_.jobs[ring];
    const int q_phase = job_count_ & 1;
    ++job_count_;
    if (__shfl_sync(~0u, job.n_rows, 0) == 0) return false;
    // Broadcast, so that the compiler knows the loop over tiles to be uniform: wgmma in divergent code is serialised.
    const auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); };
    tile_ = uniform(job.tiles.end - 1);
    first_tile_ = uniform(job.tiles.begin);
    first_is_half_ = kHalves && uniform(job.first_is_half) != 0;
    loops_ = {uniform(job.loops.masked_to), uniform(job.loops.biased_to), uniform(job.loops.plain_to)};
    gpu::mbarrier_wait(gpu::smem_address(&sm_.q_full), q_phase);
    load_q();
    bias_.open(p_, sm_, job, warp_, lane_);
    __syncwarp();
    if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.q_empty));
    return true;
  }

  __device__ __forceinline__ void load_q() {
    const int row = warp_row(warp_, lane_ % 16, p_.group_log2);
    const std::uint32_t q = gpu::smem_address(sm_.q);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) gpu::ldmatrix_x4(q_[i], q + q_offset_bytes(row, i / 4, i % 4 * 2 + lane_ / 16));
  }

  __device__ __forceinline__ void finish_job(std::uint32_t job_idx, const SoftmaxRows& rows) {
    const int ring = job_idx % kJobRing;
    write_rows<T, kHeadDim>(p_, sm_.jobs[ring], o_, finish_row(row_a_, rows.sum_a, rows.ref_a * p_.scale_ln),
                            finish_row(row_b_, rows.sum_b, rows.ref_b * p_.scale_ln), lane_);
    __syncwarp();
    if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.job_empty[ring]));
  }

  // ---------------------------------------------------------------- small things
  __device__ __forceinline__ int warpgroup() const { return warp_ / 4; }
  __device__ __forceinline__ void take_turn() const {
    if constexpr (kTakesTurns) gpu::named_barrier_sync(kTurnBarrier + warpgroup(), 256);
  }
  __device__ __forceinline__ void hand_over() const {
    if constexpr (kTakesTurns) gpu::named_barrier_arrive(kTurnBarrier + 1 - warpgroup(), 256);
  }

  // The columns of this lane that a row sees in tile_.
  __device__ __forceinline__ std::uint32_t seen_columns(int row) const {
    const int origin = tile_ * kTileKeys + lane_ % 4 * 2;  // key of this lane's first column
    const Job& job = sm_.jobs[(job_count_ - 1) % kJobRing];
    const int offset = job.first_pos + (row >> p_.group_log2) - origin;
    return lane_columns({offset - p_.visible.end + 1, min_of(offset - p_.visible.begin, job.kv_len - 1 - origin) + 1});
  }

  // Two neighbouring score blocks are one A operand of 16 keys, register for register (index/frag.hpp).
  template <int kScores>
  __device__ __forceinline__ void pack_probabilities(const float (&s)[kScores]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) p_ops_[i / 4][i % 4] = gpu::pack2<T>(s[i * 2], s[i * 2 + 1]);
    // The upper half of a halved tile: PV multiplies all of it, because a branch there costs every tile 7 %.
#pragma unroll
    for (int i = kScores / 2; i < kTileKeys / 4; ++i) p_ops_[i / 4][i % 4] = 0;
  }
  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o_[i] = 0.0f;
  }

  __device__ __forceinline__ void wait_k() {
    gpu::mbarrier_wait(gpu::smem_address(&sm_.k_full[k_count_ % kStages]), k_count_ / kStages & 1);
  }
  __device__ __forceinline__ void wait_v() {
    gpu::mbarrier_wait(gpu::smem_address(&sm_.v_full[v_count_ % kStages]), v_count_ / kStages & 1);
  }
  __device__ __forceinline__ void release_k() {
    if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.k_empty[k_count_ % kStages]));
    ++k_count_;
  }
  __device__ __forceinline__ void release_v() {
    if (lane_ == 0) gpu::mbarrier_arrive(gpu::smem_address(&sm_.v_empty[v_count_ % kStages]));
    ++v_count_;
  }

  const KernelParams& p_;
  Sm& sm_;
  const int warp_, lane_;
  int row_a_, row_b_;  // packed rows of the tile

  float s_[kTileKeys / 2];                  // scores, then probabilities, of tile_
  float o_[kHeadDim / 2];                   // output, not yet divided by the row sums
  std::uint32_t p_ops_[kTileKeys / 16][4];  // probabilities of the tile before, as A operands
  std::uint32_t q_[kHeadDim / 16][4];       // Q as A operands
  SoftmaxRows softmax_;
  Slice bias_;

  std::uint32_t k_count_ = 0, v_count_ = 0, job_count_ = 0;  // used so far; stage = n % size, phase = n / size & 1
  int tile_, first_tile_;
  bool first_is_half_;  // Job::first_is_half
  TileLoops loops_;
};

}  // namespace flashrel::sm90::prefill
