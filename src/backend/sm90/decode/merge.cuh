// The merge of a unit that several CTAs have worked on, by those CTAs, in the same launch.
//
// Every part's result goes to the workspace (index/softmax_state.hpp). The rows of the unit are cut into slices; the CTA of
// part i merges slice i once all parts are there. It waits for that, but not for ever: after some patience it leaves its slice
// to whoever comes last. Who came last knows that all parts are there and makes sure that every slice is taken on. So no CTA
// ever depends on one that has not started: there is no deadlock, however few CTAs the device can hold. A slice's result is a
// function of the parts alone, whoever merges it and even if two do: same bits.
#pragma once

#include <cstdint>

#include "backend/sm90/decode/epilogue.cuh"
#include "backend/sm90/decode/kernel_params.hpp"
#include "backend/sm90/decode/shared.cuh"
#include "gpu/mbarrier.cuh"
#include "index/softmax_state.hpp"

namespace flashrel::sm90::decode {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Units of work of a merge: whole rows where there are few parts, quarters of rows (32 columns) where there are many.
inline constexpr int kFewParts = 8, kManyParts = 40;
__device__ __forceinline__ int merge_units(const ItemInfo& part) {
  return part.n_parts < kFewParts ? part.n_rows : part.n_rows * 4;
}
__device__ __forceinline__ int merge_slices(const ItemInfo& part) { return min_of(part.n_parts, merge_units(part)); }
__device__ __forceinline__ Range slice_units(const ItemInfo& part, int slice) {
  const int units = merge_units(part), slices = merge_slices(part);
  return {slice * units / slices, (slice + 1) * units / slices};
}

// A running merge: columns of a row relative to the largest lse so far, in units of log2.
struct Merged {
  float4 out{0, 0, 0, 0};
  float top = kEmptyLse, sum = 0;

  __device__ __forceinline__ void rescale(float next_top) {
    const float keep = next_top == kEmptyLse ? 0.0f : gpu::exp2_approx(top - next_top);
    out.x *= keep, out.y *= keep, out.z *= keep, out.w *= keep;
    sum *= keep;
    top = next_top;
  }
  // After a rescale to at least `lse`.
  __device__ __forceinline__ void add(float4 x, float lse) {
    const float weight = lse == kEmptyLse ? 0.0f : gpu::exp2_approx(lse - top);
    out.x += weight * x.x, out.y += weight * x.y, out.z += weight * x.z, out.w += weight * x.w;
    sum += weight;
  }
  __device__ __forceinline__ void add(const Merged& other) {
    rescale(fmaxf(top, other.top));
    const float weight = other.top == kEmptyLse ? 0.0f : gpu::exp2_approx(other.top - top);
    out.x += weight * other.out.x, out.y += weight * other.out.y;
    out.z += weight * other.out.z, out.w += weight * other.out.w;
    sum += weight * other.sum;
  }
};

// A warp reads kAbreast parts side by side, each by 32 / kAbreast lanes of four columns, of kUnits units and kDepth steps at a
// time: all those reads are in flight together. kWarps warps share a unit. All of this fixes the order of the sum.
template <class T, int kRows, int kAbreast, int kWarps, int kUnits, int kDepth>
__device__ __forceinline__ void merge_units_of(const KernelParams& p, Shared<kRows>& sm, const ItemInfo& part, Range units,
                                               int warp, int n_warps) {
  constexpr int kLanes = 32 / kAbreast, kStep = kAbreast * kWarps;
  const int lane = threadIdx.x % 32, mine = lane / kLanes + warp % kWarps * kAbreast;
  const std::int64_t first_row = static_cast<std::int64_t>(part.slot - part.part) * kRows;
#pragma unroll 1
  for (int first = units.begin + warp / kWarps * kUnits; first < units.end; first += n_warps / kWarps * kUnits) {
    Merged merged[kUnits];
#pragma unroll 1
    for (int i = 0; i < part.n_parts; i += kStep * kDepth) {
      float lse[kUnits][kDepth];
      float4 x[kUnits][kDepth];
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int k = 0; k < kDepth; ++k) {
          const int at = i + mine + k * kStep, unit = first + u;
          const bool exists = at < part.n_parts && unit < units.end;
          const std::int64_t row = first_row + static_cast<std::int64_t>(at) * kRows + unit / kAbreast;
          const int column = unit % kAbreast * kLanes * 4 + lane % kLanes * 4;
          lse[u][k] = exists ? __ldcg(p.output.part_lse + row) * kLog2E : kEmptyLse;
          x[u][k] = exists ? __ldcg(reinterpret_cast<const float4*>(p.output.part_out + row * kHeadDim + column))
                           : make_float4(0, 0, 0, 0);
        }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        float top = merged[u].top;
#pragma unroll
        for (int k = 0; k < kDepth; ++k) top = fmaxf(top, lse[u][k]);
        merged[u].rescale(top);
#pragma unroll
        for (int k = 0; k < kDepth; ++k) merged[u].add(x[u][k], lse[u][k]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int step = kLanes; step < 32; step *= 2) {
        Merged other;
        other.out = make_float4(__shfl_xor_sync(~0u, merged[u].out.x, step), __shfl_xor_sync(~0u, merged[u].out.y, step),
                                __shfl_xor_sync(~0u, merged[u].out.z, step), __shfl_xor_sync(~0u, merged[u].out.w, step));
        other.top = __shfl_xor_sync(~0u, merged[u].top, step);
        other.sum = __shfl_xor_sync(~0u, merged[u].sum, step);
        merged[u].add(other);
      }
      if constexpr (kWarps > 1) {
        static_assert(kUnits == 1 && kWarps == kConsumerWarps);
        auto* of_warps = reinterpret_cast<Merged*>(sm.scratch[0]);  // [warp][lane of the first part]
        static_assert(sizeof(Merged) * kConsumerWarps * kLanes <= sizeof sm.scratch);
        if (lane < kLanes) of_warps[warp * kLanes + lane] = merged[0];
        gpu::named_barrier_sync(kConsumerBarrier, kConsumerWarps * 32);
        if (warp == 0 && lane < kLanes) {
#pragma unroll
          for (int w = 1; w < kWarps; ++w) merged[0].add(of_warps[w * kLanes + lane]);
        }
        gpu::named_barrier_sync(kConsumerBarrier, kConsumerWarps * 32);
      }
      const int unit = first + u, row = unit / kAbreast, column = unit % kAbreast * kLanes * 4 + lane % kLanes * 4;
      if (unit >= units.end || lane >= kLanes || warp % kWarps != 0) continue;
      const bool empty = merged[u].sum == 0.0f;
      const float scale = empty ? 0.0f : 1.0f / merged[u].sum;
      const float4 o = merged[u].out;
      write_out<T>(p, part, row, column, make_float4(o.x * scale, o.y * scale, o.z * scale, o.w * scale));
      if (column == 0) write_lse(p, part, row, empty ? kEmptyLse : (merged[u].top + __log2f(merged[u].sum)) * kLn2);
    }
  }
}

// By warps 0 ... n_warps - 1, `warp` being one of them; by all eight where there are many parts.
template <class T, int kRows>
__device__ __forceinline__ void merge_slice(const KernelParams& p, Shared<kRows>& sm, const ItemInfo& part, int slice, int warp,
                                            int n_warps) {
  const Range units = slice_units(part, slice);
  if (part.n_parts < kFewParts)
    merge_units_of<T, kRows, 1, 1, 4, 3>(p, sm, part, units, warp, n_warps);
  else if (part.n_parts <= kManyParts)
    merge_units_of<T, kRows, 4, 1, 1, 10>(p, sm, part, units, warp, n_warps);
  else
    merge_units_of<T, kRows, 4, kConsumerWarps, 1, 5>(p, sm, part, units, warp, n_warps);
}

// Tells that a part is written, by one thread after a barrier of all that wrote. Returns how many had arrived, in all runs.
__device__ __forceinline__ std::uint32_t arrive_part(const KernelParams& p, const ItemInfo& part) {
  __threadfence();
  return atomicAdd(p.merge.arrived + (part.slot - part.part), 1u);
}

__device__ __forceinline__ std::uint32_t read_acquire(const std::uint32_t* counter) {
  std::uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  return x;
}

// By one thread. `before`: what arrive_part returned.
__device__ __forceinline__ MergeState wait_for_parts(const KernelParams& p, const ItemInfo& part, std::uint32_t before) {
  const auto n = static_cast<std::uint32_t>(part.n_parts);
  const std::uint32_t begin = before - before % n;
  MergeState state;
  state.goal = begin + n;
  state.is_last = before - begin == n - 1;
  const bool has_slice = part.part < merge_slices(part);
  if (!state.is_last && !has_slice) return state;
  state.complete = state.is_last;
  const long long start = clock64();
  while (!state.complete) {
    state.complete = read_acquire(p.merge.arrived + (part.slot - part.part)) - begin >= n;
    if (!state.complete && clock64() - start > p.merge.patience_clocks) break;
  }
  if (state.complete) __threadfence();  // SYNC: the other parts' fences before their arrivals; this CTA's reads follow
  if (state.complete && has_slice) atomicExch(p.merge.taken + part.slot, state.goal);
  return state;
}

// By one warp of the CTA that came last: which slices nobody has taken on, after a moment of grace. Returns whether there are
// any.
__device__ __forceinline__ bool find_left_over(const KernelParams& p, const ItemInfo& part, std::uint32_t goal,
                                               std::uint32_t* left_over) {
  constexpr int kGraceClocks = 4000;
  const int lane = threadIdx.x % 32, n_slices = merge_slices(part);
  const std::uint32_t* taken = p.merge.taken + (part.slot - part.part);
  const long long start = clock64();
  bool any;
  do {
    any = false;
    for (int first = 0; first < n_slices; first += 32) {
      const int slice = first + lane;
      const bool open = slice < n_slices && slice != part.part && read_acquire(taken + slice) != goal;
      const unsigned mask = __ballot_sync(~0u, open);
      if (lane == 0) left_over[first / 32] = mask;
      any |= mask != 0;
    }
  } while (any && clock64() - start < min_of(kGraceClocks, p.merge.patience_clocks));
  return any;
}

// By all consumer warps, when the CTA's items are done: the merges of the units that it made parts of, two side by side where
// neither needs all warps.
template <class T, int kRows>
__device__ __forceinline__ void merge_parts(const KernelParams& p, Shared<kRows>& sm, int n_parts_made, int warp) {
  if (n_parts_made == 0) return;
  const auto sync = [] { gpu::named_barrier_sync(kConsumerBarrier, kConsumerWarps * 32); };
  const auto has_slice = [](const ItemInfo& part) { return part.part < merge_slices(part); };
  sync();  // SYNC: sm.parts is written
  // Slices are taken on as early as can be: one thread a part waits.
  const int waits_for = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x % 128 == 0 && waits_for < n_parts_made)
    sm.merge[waits_for] = wait_for_parts(p, sm.parts[waits_for], sm.arrived_before[waits_for]);
  sync();
  if (n_parts_made == 2 && sm.parts[0].n_parts <= kManyParts && sm.parts[1].n_parts <= kManyParts) {
    const ItemInfo& part = sm.parts[warp / 4];
    if (sm.merge[warp / 4].complete && has_slice(part)) merge_slice<T, kRows>(p, sm, part, part.part, warp % 4, 4);
  } else {
#pragma unroll 1
    for (int i = 0; i < n_parts_made; ++i)
      if (sm.merge[i].complete && has_slice(sm.parts[i]))
        merge_slice<T, kRows>(p, sm, sm.parts[i], sm.parts[i].part, warp, kConsumerWarps);
  }
#pragma unroll 1
  for (int i = 0; i < n_parts_made; ++i) {
    if (!sm.merge[i].is_last) continue;
    const ItemInfo& part = sm.parts[i];
    bool any = false;
    if (warp == 0) any = find_left_over(p, part, sm.merge[i].goal, sm.left_over);
    if (!gpu::named_barrier_any(kConsumerBarrier, kConsumerWarps * 32, any)) continue;
    for (int slice = 0; slice < merge_slices(part); ++slice)
      if ((sm.left_over[slice / 32] >> slice % 32 & 1) != 0) merge_slice<T, kRows>(p, sm, part, slice, warp, kConsumerWarps);
    sync();  // SYNC: sm.left_over is no longer read
  }
}

}  // namespace flashrel::sm90::decode
