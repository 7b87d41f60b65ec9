// The bias of 16 rows x 8 * kKeyBlocks keys, as the accumulators that Q K^T is added to, in three forms ("routes"):
//   score_mod  every score reads its own entry of rel_logits from global memory;
//   sheared    the rectangle that the scores need is copied to shared memory once, already sheared, and read by position;
//   fused      rel * rel_proj on the matrix units, one instruction per token of the block, 8 keys and 16 values of e:
//              the columns of the B operand are the packed projection's rows first_index - column, so the shear is in the
//              addresses; rows of other tokens are zero in the A operand. Rows in pairs (index/rows.hpp) take half as many.
#pragma once

#include "gpu/bias_window.cuh"
#include "gpu/element.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/params.hpp"
#include "gpu/rel_proj.hpp"
#include "gpu/rows.cuh"
#include "gpu/static_for.cuh"
#include "index/frag.hpp"
#include "index/shear.hpp"
#include "index/softmax_state.hpp"

namespace flashrel::gpu {

// LAYOUT of a warp's rectangle (sheared): [16 rows][n_keys + 8] float; the 8 make a quad's 8-byte reads conflict-free.
inline constexpr int rectangle_stride(int n_keys) { return n_keys + 8; }
inline constexpr int rectangle_elems(int n_keys) { return 16 * rectangle_stride(n_keys); }

// What the bias of one item is made from. A window (gpu/bias_window.cuh) is what one key tile needs of L or of the packed
// projection, brought to shared memory together with K; without one, global memory is read.
template <class T>
struct BiasView {
  const BiasParams& p;
  const RowInfo* s_rows;  // of the item
  T* s_rel;               // fused: [row][rel_steps * 16]
  float* s_rectangle;     // sheared without a window: this warp's
  bool windowed, paired;
  T* s_proj;                // window of the route fused
  int proj_rows;            // of it
  std::uint16_t* s_logits;  // window of the route sheared, 16-bit rel_logits
};

__device__ __forceinline__ float logit_from_bits(DType dtype, std::uint16_t bits) {
  return dtype == DType::kBFloat16 ? __uint_as_float(static_cast<std::uint32_t>(bits) << 16)
                                   : __half2float(__ushort_as_half(bits));
}

// Entry of rel_logits as float32; kBytes = 2 serves bfloat16 and float16.
template <int kBytes>
__device__ __forceinline__ float load_logit(const BiasParams& p, std::int64_t offset) {
  if constexpr (kBytes == 4) {
    return __ldg(static_cast<const float*>(p.logits.data) + offset);
  } else {
    return logit_from_bits(p.logits_dtype, __ldg(static_cast<const std::uint16_t*>(p.logits.data) + offset));
  }
}

__device__ __forceinline__ bool edge_clamps(const BiasParams& p) { return p.band.begin == -kFar && p.band.end == kFar; }

template <bool kWindowed, class T, int kKeyBlocks>
__device__ __forceinline__ void fused_bias(float (&c)[kKeyBlocks][4], const BiasView<T>& view, int first_row, int first_key) {
  constexpr int kKeys = 8 * kKeyBlocks;
  static_assert(kKeys <= kProjPad);
  const int lane = opaque_lane();
  const int top = first_row + lane / 4, bottom = top + 8;
  const int top_pos = view.s_rows[top].q_pos, bottom_pos = view.s_rows[bottom].q_pos;
  const int rel_elems = view.p.rel_steps * kRelStep;
  // A lane's four neighbours in e are A's registers {0, 2} and B's {0, 1}: the order of a sum is free, as long as both agree.
  const T* s_top = view.s_rel + top * rel_elems + lane % 4 * 4;
  const T* s_bottom = view.s_rel + bottom * rel_elems + lane % 4 * 4;
  const T* proj = kWindowed ? view.s_proj : static_cast<const T*>(view.p.packed_proj);
  const std::int64_t step_elems = (kWindowed ? view.proj_rows : packed_proj_rows(view.p.rel_extent)) * kRelStep;
  const int last_pos = view.s_rows[first_row + 15].q_pos;
#pragma unroll 1
  for (int pos = view.s_rows[first_row].q_pos; pos <= last_pos; ++pos) {
    const int row = kWindowed ? pos - view.s_rows[0].q_pos + kKeys - 1
                              : first_index(pos, first_key, view.p.rel_zero, view.p.rel_extent, kKeys) + kProjPad;
    const T* columns = proj + (row - lane / 4) * kRelStep + lane % 4 * 4;
#pragma unroll 1
    for (int step = 0; step < view.p.rel_steps; ++step) {
      uint2 a_top = *reinterpret_cast<const uint2*>(s_top + step * kRelStep);
      uint2 a_bottom = *reinterpret_cast<const uint2*>(s_bottom + step * kRelStep);
      if (top_pos != pos) a_top = {0, 0};
      if (bottom_pos != pos) a_bottom = {0, 0};
      const std::uint32_t a[4] = {a_top.x, a_bottom.x, a_top.y, a_bottom.y};
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
        const uint2 b = *reinterpret_cast<const uint2*>(columns - n * 8 * kRelStep);
        mma_16x8x16<T>(c[n], a, b.x, b.y);
      }
      columns += step_elems;
    }
  }
}

// The same for rows in pairs, from a window; row_of(r) is the first row of block r. The lower 8 rows of a block stand 8 tokens
// after the upper ones: what an n8 block is for these, the next one is for those. So one more block is made on the left, and
// the lower halves move one block on.
template <class T, int kRowBlocks, int kKeyBlocks, class RowOf>
__device__ __forceinline__ void paired_fused_bias(float (&c)[kRowBlocks][kKeyBlocks][4], const BiasView<T>& view,
                                                  RowOf&& row_of) {
  constexpr int kKeys = 8 * kKeyBlocks;
  const int lane = opaque_lane(), rel_elems = view.p.rel_steps * kRelStep;
  float left[kRowBlocks][4] = {};
  const int n_tokens = view.s_rows[row_of(0) + 7].q_pos - view.s_rows[row_of(0)].q_pos + 1;  // of 8 rows
  const int lane_token = view.s_rows[row_of(0) + lane / 4].q_pos - view.s_rows[row_of(0)].q_pos;
#pragma unroll 1
  for (int token = 0; token < n_tokens; ++token)
#pragma unroll 1
    for (int step = 0; step < view.p.rel_steps; ++step)
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
        const T* s_top = view.s_rel + (row_of(r) + lane / 4) * rel_elems + step * kRelStep + lane % 4 * 4;
        const int row = token + view.s_rows[row_of(r)].q_pos - view.s_rows[0].q_pos + kKeys - 1 - lane / 4;
        const T* columns = view.s_proj + (step * view.proj_rows + row) * kRelStep + lane % 4 * 4;
        uint2 a_top = *reinterpret_cast<const uint2*>(s_top);
        uint2 a_bottom = *reinterpret_cast<const uint2*>(s_top + 8 * rel_elems);
        if (lane_token != token) a_top = a_bottom = {0, 0};
        const std::uint32_t a[4] = {a_top.x, a_bottom.x, a_top.y, a_bottom.y};
#pragma unroll
        for (int n = -1; n < kKeyBlocks; ++n) {
          const uint2 b = *reinterpret_cast<const uint2*>(columns - n * 8 * kRelStep);
          mma_16x8x16<T>(n < 0 ? left[r] : c[r][max_of(n, 0)], a, b.x, b.y);
        }
      }
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int n = kKeyBlocks - 1; n > 0; --n) c[r][n][2] = c[r][n - 1][2], c[r][n][3] = c[r][n - 1][3];
    c[r][0][2] = left[r][2], c[r][0][3] = left[r][3];
  }
}

template <int kBytes, int kKeyBlocks, class T>
__device__ __forceinline__ void score_mod_bias(float (&c)[kKeyBlocks][4], const BiasView<T>& view, int first_row,
                                               int first_key) {
  const int lane = opaque_lane(), extent = static_cast<int>(view.p.rel_extent);
  const bool clamped = edge_clamps(view.p);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const RowInfo& row = view.s_rows[first_row + lane / 4 + 8 * h];
    const bool exists = row.token >= 0;
    const std::int64_t offset = logits_offset(view.p, row);
    const int first = first_index(row.q_pos, first_key, view.p.rel_zero, extent, 8 * kKeyBlocks) - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int index = first - n * 8 - i;
        if (exists && reads_entry(index, extent, clamped))
          c[n][2 * h + i] = load_logit<kBytes>(view.p, offset + nearest_entry(index, extent));
      }
  }
}

template <int kBytes, int kKeyBlocks, class T>
__device__ __forceinline__ void sheared_bias(float (&c)[kKeyBlocks][4], const BiasView<T>& view, int first_row, int first_key) {
  constexpr int kKeys = 8 * kKeyBlocks, kStride = rectangle_stride(kKeys);
  constexpr int kColumns = min_of(kKeys, 32), kRowsAtOnce = 32 / kColumns;  // that a warp copies with one load a lane
  const int lane = opaque_lane(), extent = static_cast<int>(view.p.rel_extent);
  const bool clamped = edge_clamps(view.p);
  __syncwarp();  // SYNC: the rectangle's last readers are done
#pragma unroll 4
  for (int line = lane / kColumns; line < 16; line += kRowsAtOnce) {
    const RowInfo& row = view.s_rows[first_row + line];
    const int first = first_index(row.q_pos, first_key, view.p.rel_zero, extent, kKeys) - lane % kColumns;
#pragma unroll
    for (int column = 0; column < kKeys; column += kColumns) {
      const bool reads = row.token >= 0 && reads_entry(first - column, extent, clamped);
      view.s_rectangle[line * kStride + column + lane % kColumns] =
          reads ? load_logit<kBytes>(view.p, logits_offset(view.p, row) + nearest_entry(first - column, extent)) : 0.0f;
    }
  }
  __syncwarp();  // SYNC: the rectangle is complete
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Cell cell = mma_c_cell(lane, 2 * h);
      const float2 pair = *reinterpret_cast<const float2*>(view.s_rectangle + cell.row * kStride + n * 8 + cell.col);
      c[n][2 * h] = pair.x;
      c[n][2 * h + 1] = pair.y;
    }
}

// The same from a window of 16-bit entries.
template <int kKeyBlocks, class T>
__device__ __forceinline__ void windowed_bias(float (&c)[kKeyBlocks][4], const BiasView<T>& view, int first_row,
                                              int first_key) {
  constexpr int kKeys = 8 * kKeyBlocks;
  const int lane = opaque_lane(), extent = static_cast<int>(view.p.rel_extent);
  const bool clamped = edge_clamps(view.p);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int line = first_row + lane / 4 + 8 * h;
    const RowInfo& row = view.s_rows[line];
    const int first = first_index(row.q_pos, first_key, view.p.rel_zero, extent, kKeys);
    const int start = window_start(first, extent, kKeys);
    const std::uint16_t* entries =
        view.s_logits + line * logits_window_stride(kKeys) + logits_shift(view.p, logits_offset(view.p, row) + start) - start;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int index = first - lane % 4 * 2 - n * 8 - i;
        const float entry = logit_from_bits(view.p.logits_dtype, entries[nearest_entry(index, extent)]);
        c[n][2 * h + i] = reads_entry(index, extent, clamped) ? entry : 0.0f;
      }
  }
}

template <int kKeyBlocks, class T>
__device__ __forceinline__ void scale_bias(float (&c)[kKeyBlocks][4], const BiasView<T>& view, int first_row) {
  const int lane = opaque_lane();
  const float factor[2] = {view.s_rows[first_row + lane / 4].bias_factor, view.s_rows[first_row + lane / 4 + 8].bias_factor};
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] *= factor[i / 2];
}

template <class T, int kKeyBlocks>
__device__ __forceinline__ void block_bias(float (&c)[kKeyBlocks][4], const BiasView<T>& view, int first_row, int first_key) {
  if (view.p.route == Route::kFused) {
    if (view.windowed)
      fused_bias<true>(c, view, first_row, first_key);
    else
      fused_bias<false>(c, view, first_row, first_key);
  } else if (view.windowed) {
    windowed_bias(c, view, first_row, first_key);
  } else if (view.p.route == Route::kSheared) {
    if (view.p.logits_dtype == DType::kFloat32)
      sheared_bias<4>(c, view, first_row, first_key);
    else
      sheared_bias<2>(c, view, first_row, first_key);
  } else {
    if (view.p.logits_dtype == DType::kFloat32)
      score_mod_bias<4>(c, view, first_row, first_key);
    else
      score_mod_bias<2>(c, view, first_row, first_key);
  }
}

// Scores of kRowBlocks blocks of 16 rows (row_of(r) is the first row of block r) and keys
// [first_key, first_key + 8 * kKeyBlocks) before Q K^T is added: the bias in units of q.k, bias * rel_scale / softmax_scale.
// They come as zeros.
template <class T, int kRowBlocks, int kKeyBlocks, class RowOf>
__device__ __forceinline__ void add_bias(float (&c)[kRowBlocks][kKeyBlocks][4], const BiasView<T>& view, int first_key,
                                         RowOf&& row_of) {
  if (view.paired) {
    paired_fused_bias(c, view, row_of);
    static_for<kRowBlocks>([&](auto r) { scale_bias(c[r], view, row_of(r)); });
    return;
  }
  static_for<kRowBlocks>([&](auto r) {
    if (view.s_rows[row_of(r)].token < 0) return;
    block_bias(c[r], view, row_of(r), first_key);
    scale_bias(c[r], view, row_of(r));
  });
}

template <int kKeyBlocks>
__device__ __forceinline__ void clear_scores(float (&c)[kKeyBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
}

// Hidden scores become -inf.
template <int kKeyBlocks>
__device__ __forceinline__ void mask_scores(float (&score)[kKeyBlocks][4], const AttentionParams& p, const Item& item,
                                            const RowInfo* s_rows, int first_row, int first_key) {
  const int lane = opaque_lane();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Range keys = visible_keys_at(s_rows[first_row + lane / 4 + 8 * h].q_pos, item.lengths, p.visible);
    const int offset = first_key + lane % 4 * 2 - keys.begin, count = keys.size();
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (static_cast<unsigned>(offset + n * 8 + i) >= static_cast<unsigned>(count)) score[n][2 * h + i] = kEmptyLse;
  }
}

template <int kKeyBlocks>
__device__ __forceinline__ void scale_scores(float (&score)[kKeyBlocks][4], float scale) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) score[n][i] *= scale;
}

}  // namespace flashrel::gpu
