// Mode logits: score registers from rel_logits in shared memory (logits.hpp), before QK adds to them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/sm90/prefill/bias.cuh"
#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/prefill/logits.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/mbarrier.cuh"
#include "gpu/mma_sync.cuh"

namespace flashrel::sm90::prefill {

inline constexpr int kKeyBlocks = kMaxTileKeys / kBlockKeys;

// The slot of a warp's next tile: waits until it is full. A wait tells a phase only from the one before; that the slot's last
// user, one of the warps that read before this one, was served is known from the turns (consumer.cuh).
struct LogitsSlot {
  const std::uint8_t* memory;
  std::uint32_t address;
  std::uint32_t empty;  // mbarrier

  template <class Sm>
  __device__ __forceinline__ LogitsSlot(const KernelParams& p, Sm& sm, std::uint32_t n_used, int warp) {
    const int n = static_cast<int>(n_used) * kConsumerWarps + warp;
    const int turn = p.logits.n_slots.quotient(n), slot = n - turn * static_cast<int>(p.logits.n_slots.divisor);
    gpu::mbarrier_wait(gpu::smem_address(&sm.logits_full[slot]), turn & 1);
    memory = sm.bias + slot * p.logits.slot_bytes;
    address = gpu::smem_address(memory);
    empty = gpu::smem_address(&sm.logits_empty[slot]);
  }
  __device__ __forceinline__ void release(int lane) const {
    __syncwarp();
    if (lane == 0) gpu::mbarrier_arrive(empty);
  }
};

// 16-bit entries. Eight keys of a slice are one product: A = two neighbouring chunks of 8 entries of its 16 rows, B = the
// 16 x 8 matrix that picks entry `shift + 7 - column` for each column. A product with ones and zeros is exact, undoes the
// shift of any size and turns ascending entries into ascending keys; B also carries the factor 1 / softmax_scale where that
// is a power of two.
template <class T, class Logit>
struct BiasSlice<T, LogitsBias<Logit>> {
  static constexpr bool kBiased = true;
  static constexpr bool kMayBeInfinite = true;  // a caller may hide keys by -inf

  std::uint32_t pick[2];     // B
  std::uint32_t n_used = 0;  // slots of this warp so far

  template <class Sm>
  __device__ __forceinline__ BiasSlice(const KernelParams&, Sm&, int, int) {}

  template <class Sm>
  __device__ __forceinline__ void open(const KernelParams& p, Sm&, const Job& job, int warp, int lane) {
    const int shift = logits_place(job.first_pos, static_cast<int>(p.rel_zero), warp, 0, p.rel_extent, 8).shift;
    const int entry = shift + 7 - lane / 4;  // of this lane's column
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = lane % 4 * 2 + i * 8;
      pick[i] = gpu::pack2<Logit>(k == entry ? p.logits.factor : 0.0f, k + 1 == entry ? p.logits.factor : 0.0f);
    }
  }

  // s = bias of the next slot, in units of 1 / softmax_scale.
  template <class Sm>
  __device__ __forceinline__ void scores(const KernelParams& p, Sm& sm, float (&s)[64], int, int warp, int lane) {
    const LogitsSlot slot(p, sm, n_used++, warp);
    const int row = lane % 16;
    const std::uint32_t base = slot.address + row * p.logits.row_bytes + (row >> p.group_log2) * 16;
    constexpr int kChunkPairs = kKeyBlocks / 2;
    std::uint32_t chunks[2][4];  // chunks 2 m and 2 m + 1: rows 0-7, 8-15 of each
    load_chunks(chunks[0], base + lane / 16 * 16);
#pragma unroll
    for (int m = 0; m < kChunkPairs; ++m) {
      const std::uint32_t(&low)[4] = chunks[m & 1];
      std::uint32_t(&high)[4] = chunks[(m + 1) & 1];
      load_chunks(high, base + (m + 1) * 32 + (m + 1 < kChunkPairs ? lane / 16 * 16 : 0));  // of the last pair one is enough
      block_scores(s, kKeyBlocks - 1 - 2 * m, {low[0], low[1], low[2], low[3]});
      block_scores(s, kKeyBlocks - 2 - 2 * m, {low[2], low[3], high[0], high[1]});
    }
    slot.release(lane);
    // A loop of no or one turn, as in the fused bias.
#pragma unroll 1
    for (int i = 0; i < p.n_factor_turns; ++i) {
#pragma unroll
      for (int j = 0; j < 64; ++j) s[j] *= p.inverse_scale;
    }
  }

 private:
  struct Operand {
    std::uint32_t a[4];
  };

  __device__ __forceinline__ void block_scores(float (&s)[64], int block, Operand a) const {
    float d[4];
    product<Logit>(d, a.a, pick[0], pick[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[block * 4 + i] = d[i];
  }

  // Infinities and NaNs would spread over a row through products with 0: -inf becomes the lowest number, and so does a NaN in
  // an entry that nobody looks at.
  __device__ __forceinline__ static void load_chunks(std::uint32_t (&chunks)[4], std::uint32_t address) {
    using Pair = std::conditional_t<std::is_same_v<Logit, __half>, __half2, __nv_bfloat162>;
    constexpr std::uint32_t kLowest = std::is_same_v<Logit, __half> ? 0xfbfffbffu : 0xff7fff7fu;
    gpu::ldmatrix_x4(chunks, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Pair bounded = __hmax2(*reinterpret_cast<const Pair*>(&chunks[i]), *reinterpret_cast<const Pair*>(&kLowest));
      chunks[i] = *reinterpret_cast<const std::uint32_t*>(&bounded);
    }
  }
};

// float32 entries: a load a score.
template <class T>
struct BiasSlice<T, LogitsBias<float>> {
  static constexpr bool kBiased = true, kMayBeInfinite = true;

  int shift = 0;
  std::uint32_t n_used = 0;

  template <class Sm>
  __device__ __forceinline__ BiasSlice(const KernelParams&, Sm&, int, int) {}

  template <class Sm>
  __device__ __forceinline__ void open(const KernelParams& p, Sm&, const Job& job, int warp, int) {
    shift = logits_place(job.first_pos, static_cast<int>(p.rel_zero), warp, 0, p.rel_extent, 4).shift;
  }

  template <class Sm>
  __device__ __forceinline__ void scores(const KernelParams& p, Sm& sm, float (&s)[64], int, int warp, int lane) {
    const LogitsSlot slot(p, sm, n_used++, warp);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half, last = kMaxTileKeys - 1;
      const float* entries =
          reinterpret_cast<const float*>(slot.memory + row * p.logits.row_bytes) +
          logits_entry(shift, row, last - 7 + lane % 4 * 2, p.group_log2);  // of the first column in the last block
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
        for (int i = 0; i < 2; ++i) s[b * 4 + half * 2 + i] = entries[(kKeyBlocks - 1 - b) * kBlockKeys - i];
    }
    slot.release(lane);
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= p.inverse_scale;
  }
};

}  // namespace flashrel::sm90::prefill
