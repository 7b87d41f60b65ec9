// Bias windows: what the scores of one key tile need of the bias, copied asynchronously to shared memory together with K, so
// that nobody waits for global memory.
//
// LAYOUTS
//   fused    [step][proj_rows][16] T: row i is the packed projection's row for index rel_zero + first_pos - last_key + i;
//            tokens of the tile x keys of the tile are n_keys + n_tokens - 1 neighbouring rows
//   sheared  [row][logits_window_stride] uint16: entries [start, start + n_keys) of the row's rel_logits, from the 4-byte word
//            that holds the first one (logits_shift: 0 or 1 entries earlier)
#pragma once

#include <cstdint>

#include "gpu/cp_async.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/params.hpp"
#include "gpu/rel_proj.hpp"
#include "gpu/rows.cuh"
#include "index/shear.hpp"

namespace flashrel::gpu {

// 33 words hold 64 entries at either parity; 36 spread a quad's rows over the banks.
inline constexpr int logits_window_stride(int n_keys) { return n_keys + 8; }

__device__ __forceinline__ int logits_shift(const BiasParams& p, std::int64_t offset) {
  return static_cast<int>((reinterpret_cast<std::uintptr_t>(p.logits.data) / 2 + static_cast<std::uint64_t>(offset)) % 2);
}

template <class T, int kThreads>
__device__ __forceinline__ void copy_proj_window(const BiasParams& p, int first_pos, int first_key, int n_keys, int n_rows,
                                                 int proj_rows, T* s_proj) {
  const int thread = static_cast<int>(opaque(threadIdx.x)), half = thread % 2;
  // Rows -1 and `extent` of the packed projection stand for everything further out.
  const int lowest = static_cast<int>(clamp_to<std::int64_t>(p.rel_zero + first_pos - (first_key + n_keys - 1), -kFar, kFar));
  const T* const source = static_cast<const T*>(p.packed_proj) + kProjPad * kRelStep + half * 8;
  const std::uint32_t s_target = smem_address(s_proj + half * 8);
#pragma unroll 1
  for (int step = 0; step < p.rel_steps; ++step)
#pragma unroll 1
    for (int row = thread / 2; row < n_rows; row += kThreads / 2) {
      const int index = clamp_to(lowest + row, -1, static_cast<int>(p.rel_extent));
      cp_async_16(s_target + (step * proj_rows + row) * (kRelStep * 2),
                  source + (step * packed_proj_rows(p.rel_extent) + index) * kRelStep, true);
    }
}

// A warp copies kLines rows, those whose numbers `row_of(line)` gives; lane i prepares line i.
template <int kLines, class RowOf>
__device__ __forceinline__ void copy_logits_window(const BiasParams& p, const RowInfo* s_rows, int first_key, int n_keys,
                                                   std::uint16_t* s_logits, RowOf&& row_of) {
  static_assert(kLines <= 32);
  const int lane = opaque_lane(), extent = static_cast<int>(p.rel_extent), stride = logits_window_stride(n_keys);
  const int line = lane % kLines;
  const RowInfo& mine = s_rows[row_of(line)];
  const int start = window_start(first_index(mine.q_pos, first_key, p.rel_zero, extent, n_keys), extent, n_keys);
  const std::int64_t offset = logits_offset(p, mine) + start;
  const int shift = logits_shift(p, offset);
  // From the first word; the last bytes that may be read end with the row's entries.
  const char* source = static_cast<const char*>(p.logits.data) + (offset - shift) * 2;
  const int n_bytes = mine.token >= 0 ? (min_of(n_keys, extent - start) + shift) * 2 : 0;
#pragma unroll 4
  for (int i = 0; i < kLines; ++i) {
    const auto address = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(source), i);
    const int bytes = clamp_to(__shfl_sync(kAllLanes, n_bytes, i) - lane * 4, 0, 4);
    if (bytes > 0)
      cp_async_4(smem_address(s_logits + row_of(i) * stride + lane * 2), reinterpret_cast<const char*>(address) + lane * 4,
                 bytes);
  }
  const int tail = lane < kLines ? clamp_to(n_bytes - 128, 0, 4) : 0;  // the 33rd word
  if (tail > 0) cp_async_4(smem_address(s_logits + row_of(line) * stride + 64), source + 128, tail);
}

}  // namespace flashrel::gpu
