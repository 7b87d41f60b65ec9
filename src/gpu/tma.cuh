// Tensor copies from global to shared memory (sm_90). A box of the map's tensor, starting at the given coordinates, arrives at
// `smem` and its bytes are counted on the mbarrier `bar`; cells outside the tensor arrive as zeros and count as well.
// Source: PTX ISA, "cp.async.bulk.tensor".
#pragma once

#include <cuda.h>

#include <cstdint>

namespace flashrel::gpu {

__device__ __forceinline__ void tma_load_3d(std::uint32_t smem, const CUtensorMap& map, std::uint32_t bar, int c0, int c1,
                                            int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void tma_load_4d(std::uint32_t smem, const CUtensorMap& map, std::uint32_t bar, int c0, int c1,
                                            int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
          smem),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void tma_load_5d(std::uint32_t smem, const CUtensorMap& map, std::uint32_t bar, int c0, int c1,
                                            int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::
          "r"(smem),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
// The same for data that is read once: the L2 cache drops it first.
__device__ __forceinline__ void tma_load_5d_once(std::uint32_t smem, const CUtensorMap& map, std::uint32_t bar, int c0, int c1,
                                                 int c2, int c3, int c4) {
  constexpr std::uint64_t kEvictFirst = 0x12f0000000000000;  // as createpolicy.fractional.L2::evict_first encodes it
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(smem),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(kEvictFirst)
      : "memory");
}
__device__ __forceinline__ void tma_load_2d(std::uint32_t smem, const CUtensorMap& map, std::uint32_t bar, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(smem),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace flashrel::gpu
