// The sm90 prefill kernel: persistent CTAs of three warpgroups. Warpgroup 0: warp 0 schedules (warp 1 where a CTA has one job
// at most), warp 1 loads Q, rel and K, warp 2 loads V, warp 3 loads rel_logits and cleans V; warpgroups 1 and 2 compute, 64
// packed rows each. Design, budgets and figures: README.md. Called by launch.cu.
#pragma once

#include "backend/sm90/prefill/bias.cuh"
#include "backend/sm90/prefill/consumer.cuh"
#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/prefill/loader.cuh"
#include "backend/sm90/prefill/logits.cuh"
#include "backend/sm90/prefill/scheduler.cuh"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/tma.cuh"

namespace flashrel::sm90::prefill {

template <class Bias, class Sm>
__device__ __forceinline__ void init_barriers(Sm& sm) {
  const auto init = [](std::uint64_t& bar, int count) { gpu::mbarrier_init(gpu::smem_address(&bar), count); };
  init(sm.q_full, 1);
  init(sm.q_empty, kConsumerWarps);
  for (int i = 0; i < kStages; ++i) {
    init(sm.k_full[i], 1);
    init(sm.k_empty[i], kConsumerWarps);
    init(sm.v_full[i], 1);
    init(sm.v_empty[i], kConsumerWarps);
  }
  for (int i = 0; kLogitBytes<Bias> != 0 && i < kMaxLogitsSlots; ++i) {
    init(sm.logits_full[i], 1);
    init(sm.logits_empty[i], 1);
  }
  init(sm.dirty_full, 1);
  init(sm.dirty_empty, 1);
  for (int i = 0; i < kJobRing; ++i) {
    init(sm.job_full[i], 1);
    init(sm.job_empty[i], kConsumerWarps + 1);
  }
  init(sm.job_taken, 1);
  gpu::fence_mbarrier_init();
}

template <class Bias>
__device__ __forceinline__ void prefetch_maps(const KernelParams& p) {
  gpu::prefetch_tensor_map(p.q);
  gpu::prefetch_tensor_map(p.k);
  gpu::prefetch_tensor_map(p.v);
  if constexpr (kRelSteps<Bias> > 0) gpu::prefetch_tensor_map(p.rel);
  if constexpr (kLogitBytes<Bias> != 0) gpu::prefetch_tensor_map(p.logits_map);
}

template <class T, class Bias, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ KernelParams p) {
  static_assert(kRegistersFit<Bias>);
  constexpr int kSteps = kRelSteps<Bias>;
  using Sm = Shared<kDim, tile_keys_of(kSteps)>;
  extern __shared__ __align__(1024) std::uint8_t shared_memory[];
  Sm& sm = *reinterpret_cast<Sm*>(shared_memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  OwnSequence own;
  if (warp == 1) own = read_own_sequence(p);
  if (threadIdx.x == 64) prefetch_maps<Bias>(p);
  if (threadIdx.x == 96) init_barriers<Bias>(sm);
  __syncthreads();

  if (warp < 4) {
    gpu::give_registers<kOtherRegisters<Bias>>();
    if (warp == 0) {
      if (!p.schedules_itself) scheduler_warp<T, kKnowsHalves<Bias, Sm::kKeys>>(p, sm);
    } else if (warp == 1) {
      if (p.schedules_itself) own_job<T>(p, sm, own);
      Loader<Sm>(p, sm).run_keys(rel_tile_bytes(kSteps));
    } else if (warp == 2) {
      Loader<Sm>(p, sm).run_values();
    } else {
      Follower<Sm, kLogitBytes<Bias>>(p, sm).run();
    }
  } else {
    gpu::take_registers<kConsumerRegisters<Bias>>();
    if constexpr (kSteps > 0) {
      build_proj<kSteps>(p, sm.proj(kSteps), threadIdx.x - 128, 256);
      gpu::named_barrier_sync(kProjBarrier, 256);
    }
    Consumer<T, Bias, Sm>(p, sm, warp - 4).run();
  }
}

template <class T, class Bias, int kDim>
const void* kernel_address() {
  return reinterpret_cast<const void*>(&attention_kernel<T, Bias, kDim>);
}

}  // namespace flashrel::sm90::prefill
