// The fused bias: rel (rows x d_rel) times proj^T on the matrix units, written into the score registers before QK adds to them.
// Index maths and the claim that each score gets its own entry: shear.hpp, shear_test.cpp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/sm90/prefill/kernel_params.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/prefill/shared.cuh"
#include "gpu/mma_sync.cuh"

namespace flashrel::sm90::prefill {

// proj^T and what lies around it, zeros or the outermost entries, as far as the call may need it; by all consumer threads.
template <int kSteps>
__device__ __forceinline__ void build_proj(const KernelParams& p, std::uint8_t* proj, int thread, int n_threads) {
  constexpr int kValues = kSteps * kRelDim;
  for (int place = p.proj_entries.begin + thread; place < p.proj_entries.end; place += n_threads) {
    const int entry = clamp_to(place, 0, p.rel_extent - 1);
    const auto* source = static_cast<const std::uint16_t*>(p.proj) + entry;
    std::uint32_t values[kValues];  // 16 bits each; loads have no conditions, zeros come afterwards
#pragma unroll
    for (int e = 0; e < kValues; ++e) {
      values[e] = *source;
      source += e + 1 < p.d_rel ? p.proj_row_stride : 0;
    }
    const int n_values = p.edge_clamps || entry == place ? p.d_rel : 0;
    const auto word = [&](int i) { return (i < n_values ? values[i] : 0) | (i + 1 < n_values ? values[i + 1] << 16 : 0); };
    uint4* target = reinterpret_cast<uint4*>(proj + (kProjPad + place) * kSteps * kRelRowBytes);
#pragma unroll
    for (int i = 0; i < kValues; i += 8) target[i / 8] = make_uint4(word(i), word(i + 2), word(i + 4), word(i + 6));
  }
}

// d (16 x 8) = a (16 x 16) * b (16 x 8); the zero accumulator is an operand, not four registers to clear first.
template <class T>
__device__ __forceinline__ void product(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// One lane's share of the bias of its slice.
//   kBiased           there is one
//   kMayBeInfinite    a row's scores may all be -inf in a tile without mask
//   open()            reads what belongs to a job
//   scores()          writes the bias of a tile; called for every tile that TileLoops calls biased, in order
template <class T, class Bias>
struct BiasSlice;

template <class T>
struct BiasSlice<T, NoBias> {
  static constexpr bool kBiased = false, kMayBeInfinite = false;
  template <class Sm>
  __device__ __forceinline__ BiasSlice(const KernelParams&, Sm&, int, int) {}
  template <class Sm>
  __device__ __forceinline__ void open(const KernelParams&, Sm&, const Job&, int, int) {}
  template <class Sm, int kScores>
  __device__ __forceinline__ void scores(const KernelParams&, Sm&, float (&)[kScores], int, int, int) {}
};

// The elements of a row are dealt out to the k indices of the products in the order in which a lane finds them in 8 bytes (16
// with two steps); rel and proj^T use the same order, so the sum is the same.
template <class T, int kGroup, int kSteps>
struct BiasSlice<T, FusedBias<kGroup, kSteps>> {
  static constexpr bool kBiased = true, kMayBeInfinite = false;
  static constexpr int kRowBytes = kSteps * kRelRowBytes, kLaneWords = 2 * kSteps;

  std::uint32_t rel[kSteps][4];  // A operands: rows lane / 4 and lane / 4 + 8
  float factor_a, factor_b;
  const std::uint8_t* lane_proj;  // row `warp - column` of proj^T, this lane's bytes
  int first_index;                // q_pos(first token) + rel_zero

  template <class Sm>
  __device__ __forceinline__ BiasSlice(const KernelParams&, Sm& sm, int warp, int lane)
      : lane_proj(sm.proj(kSteps) + (kProjPad + warp - lane / 4) * kRowBytes + lane % 4 * kLaneWords * 4) {}

  template <class Sm>
  __device__ __forceinline__ void open(const KernelParams& p, Sm& sm, const Job& job, int warp, int lane) {
    constexpr int kGroupLog2 = kGroup == 16 ? 4 : kGroup == 8 ? 3 : 2;
    const int row_a = warp_row(warp, lane / 4, kGroupLog2), row_b = warp_row(warp, lane / 4 + 8, kGroupLog2);
    const std::uint8_t* lane_rel = sm.rel() + lane % 4 * kLaneWords * 4;
    const LaneWords a = load_words(lane_rel + row_a * kRowBytes), b = load_words(lane_rel + row_b * kRowBytes);
#pragma unroll
    for (int i = 0; i < kLaneWords; ++i) rel[i / 2][i % 2 * 2] = a.word[i], rel[i / 2][i % 2 * 2 + 1] = b.word[i];
    first_index = job.first_pos + static_cast<int>(p.rel_zero);
    if (p.n_factor_turns == 0) {
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) rel[i / 4][i % 4] = times(rel[i / 4][i % 4], p.inverse_scale);
    } else {
      factor_a = factor_b = p.inverse_scale;
      if (p.rel_scale != nullptr) {
        const int last = p.n_tokens - 1 - job.first_token;
        const float* tau = p.rel_scale + job.first_token * p.rel_scale_stride;
        factor_a *= tau[min_of(row_a / kGroup, last) * p.rel_scale_stride];
        factor_b *= tau[min_of(row_b / kGroup, last) * p.rel_scale_stride];
      }
    }
  }

  // s = bias of key tile `tile`, or of its first 2 kScores keys, in units of 1 / softmax_scale.
  template <class Sm, int kScores>
  __device__ __forceinline__ void scores(const KernelParams& p, Sm&, float (&s)[kScores], int tile, int, int lane) const {
    const int origin = clamped_origin(first_index - static_cast<long long>(tile) * Sm::kKeys, p.rel_extent);
    const std::uint8_t* base = lane_proj + origin * kRowBytes;
    constexpr int kBlocks = 2 * kScores / kBlockKeys;
    if constexpr (kGroup == 16) {
#pragma unroll
      for (int f = kBlocks - 1; f >= 0; --f) {
        float d[4];
        fragment(d, base, f);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[f * 4 + i] = d[i];
      }
    } else if constexpr (kGroup == 8) {
#pragma unroll
      for (int f = kBlocks - 1; f >= first_fragment(8); --f) {
        float d[4];
        fragment(d, base, f);
        if (f >= 0) s[f * 4] = d[0], s[f * 4 + 1] = d[1];                           // rows 0-7: block f
        if (f + 1 < kBlocks) s[(f + 1) * 4 + 2] = d[2], s[(f + 1) * 4 + 3] = d[3];  // rows 8-15: block f + 1
      }
    } else {
      static_assert(kGroup == 4);
      // Rows 0-3, 4-7, 8-11, 12-15 take fragments b, b - 1, b - 2, b - 3; lanes 16-31 hold the second and the fourth quarter.
      const bool upper = lane >= 16;
      float d[2][4];  // fragments f and f + 1
#pragma unroll
      for (int f = kBlocks - 1; f >= first_fragment(4); --f) {
        fragment(d[f & 1], base, f);
        const float(&low)[4] = d[(f + 1) & 1];
        const float(&high)[4] = d[f & 1];
        const int block_a = f + 1, block_b = f + 3;
        if (block_a >= 0 && block_a < kBlocks) {
#pragma unroll
          for (int i = 0; i < 2; ++i) s[block_a * 4 + i] = upper ? high[i] : low[i];
        }
        if (block_b >= 0 && block_b < kBlocks) {
#pragma unroll
          for (int i = 2; i < 4; ++i) s[block_b * 4 + i] = upper ? high[i] : low[i];
        }
      }
    }
    // A loop of no or one turn: an `if` becomes 64 predicated multiplications that everyone pays for.
#pragma unroll 1
    for (int i = 0; i < p.n_factor_turns; ++i) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        s[b * 4] *= factor_a, s[b * 4 + 1] *= factor_a;
        s[b * 4 + 2] *= factor_b, s[b * 4 + 3] *= factor_b;
      }
    }
  }

 private:
  struct alignas(4 * kLaneWords) LaneWords {
    std::uint32_t word[kLaneWords];
  };
  __device__ __forceinline__ static LaneWords load_words(const std::uint8_t* address) {
    if constexpr (kSteps == 1) {
      const uint2 x = *reinterpret_cast<const uint2*>(address);
      return {{x.x, x.y}};
    } else {
      const uint4 x = *reinterpret_cast<const uint4*>(address);
      return {{x.x, x.y, x.z, x.w}};
    }
  }

  __device__ __forceinline__ void fragment(float (&d)[4], const std::uint8_t* base, int f) const {
    const LaneWords b = load_words(base - f * kBlockKeys * kRowBytes);
    product<T>(d, rel[0], b.word[0], b.word[1]);
    if constexpr (kSteps == 2) gpu::mma_16x8x16<T>(d, rel[1], b.word[2], b.word[3]);
  }

  __device__ __forceinline__ static std::uint32_t times(std::uint32_t pair, float factor) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Pair x = *reinterpret_cast<Pair*>(&pair);
    const Pair product = __hmul2(x, Pair{T(factor), T(factor)});
    return *reinterpret_cast<const std::uint32_t*>(&product);
  }
};

}  // namespace flashrel::sm90::prefill
