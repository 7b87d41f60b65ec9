// The sm90 decode kernel: one CTA an SM, three warpgroups. Warpgroups 0 and 1 compute; of the third, warp 8 loads K and V, warp
// 9 loads what an item needs beside them, warp 10 turns rel_proj. Design and figures: README.md. Called by launch.cu.
#pragma once

#include "backend/sm90/decode/consumer.cuh"
#include "backend/sm90/decode/kernel_params.hpp"
#include "backend/sm90/decode/launch.hpp"
#include "backend/sm90/decode/loader.cuh"
#include "backend/sm90/decode/query.cuh"
#include "backend/sm90/decode/shared.cuh"
#include "gpu/mbarrier.cuh"

namespace flashrel::sm90::decode {

template <int kRows, Bias kBias>
__device__ __forceinline__ void init_barriers(Memory<kRows, kBias>& sm) {
  const auto init = [](std::uint64_t& bar, int count) { gpu::mbarrier_init(gpu::smem_address(&bar), count); };
  for (int i = 0; i < sm.kStages; ++i) {
    init(sm.full[i], is_fused(kBias) ? 2 : 1);
    init(sm.empty[i], kConsumerWarps);
    init(sm.raw_full[i], 1);
  }
  for (int i = 0; i < 2; ++i) {
    init(sm.item_full[i], 32);
    init(sm.item_empty[i], kConsumerWarps * 32);
  }
  gpu::fence_mbarrier_init();
}

template <class T, int kRows, Bias kBias>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(1024) std::uint8_t shared_memory[];
  auto& sm = *reinterpret_cast<Memory<kRows, kBias>*>(shared_memory);
  if (threadIdx.x == 0) init_barriers<kRows, kBias>(sm);
  if (threadIdx.x == 32) {
    gpu::prefetch_tensor_map(p.k);
    gpu::prefetch_tensor_map(p.v);
    gpu::prefetch_tensor_map(p.q);
  }
  __syncthreads();

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp < kConsumerWarps) {
    gpu::take_registers<kConsumerRegisters>();
    wait_for_kernel_before();
    Consumer<T, kRows, kBias>(p, sm, warp).run();
  } else {
    gpu::give_registers<kOtherRegisters>();
    if (warp == kConsumerWarps)
      Loader<kRows, kBias>(p, sm).run();
    else if (warp == kConsumerWarps + 1)
      query_warp<kRows, kBias>(p, sm);
    else if (warp == kConsumerWarps + 2)
      if constexpr (is_fused(kBias)) bias_warp<kRows, kBias>(sm);
  }
}

template <class T, int kRows, Bias kBias>
const void* kernel_address() {
  return reinterpret_cast<const void*>(&attention_kernel<T, kRows, kBias>);
}

}  // namespace flashrel::sm90::decode
