// Kernel for many packed rows (prefill, chunks, multi-token decode): warps split the rows, all share a tile of keys.
//
//   persistent CTAs take work items from a counter; an item is kTileRows rows x a range of key tiles, newest tile first;
//   per key tile:  S = Q K^T -> bias, mask -> online softmax -> O += P V          (mma.sync, float32 accumulators)
//
// SHARED MEMORY (bytes for head_dim 128)
//   q        [kTileRows][kHeadDim] T, swizzled            32 K   also stages the output rows of the warp that owns them
//   k, v     [kTileKeys][kHeadDim] T, swizzled, one each  16 K + 16 K
//   places   [2 tiles][K, V][kTileKeys] int64              2 K   where key rows live (gpu/page_loader.cuh)
//   rows     [kTileRows] RowInfo                           4 K
//   state    [kRowBlocks][max, sum][kThreads] float2       4 K   softmax state between tiles
//   extra    fused: rel rows [kTileRows][rel_steps * 16] T and a bias window; sheared: a bias window, or rectangles
//
// BARRIERS: two __syncthreads a tile. The first makes K(t) visible and frees the V buffer, the second makes V(t) and the
// places of tile t+1 visible and frees the K buffer and the bias window; so V(t) arrives behind Q K^T, and K(t+1) behind
// softmax and P V.
#pragma once

#include "backend/mma/shapes.hpp"
#include "gpu/bias.cuh"
#include "gpu/cp_async.cuh"
#include "gpu/epilogue.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/online_softmax.cuh"
#include "gpu/page_loader.cuh"
#include "gpu/rows.cuh"
#include "gpu/static_for.cuh"

namespace flashrel::mma {

using namespace flashrel::gpu;

// Brings key tiles to shared memory: addresses one tile ahead of the copies, page numbers one tile ahead of the addresses.
template <class T, class Shape>
struct TileLoader {
  static constexpr int kChunks = Shape::kHeadDim / kChunkElems, kRowsPerPass = Shape::kThreads / kChunks;

  const AttentionParams& p;
  const Item& item;
  std::int64_t (*s_places)[2][Shape::kTileKeys];  // [tile parity][K, V][key]
  int page;                                       // of this thread's key in the tile to be published next

  // Thread i looks up key i % kTileKeys, for K (i < kTileKeys) or V.
  __device__ __forceinline__ int key_of(int tile) const {
    return tile * Shape::kTileKeys + static_cast<int>(threadIdx.x) % Shape::kTileKeys;
  }
  __device__ __forceinline__ void fetch_page(int tile) {
    page = static_cast<int>(threadIdx.x) < 2 * Shape::kTileKeys && tile >= item.work.tile_begin
               ? key_page(p.batch, item, key_of(tile))
               : kNoPage;
  }
  __device__ __forceinline__ void publish_places(int tile) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= 2 * Shape::kTileKeys) return;
    const bool is_v = thread >= Shape::kTileKeys;
    s_places[tile & 1][is_v][thread % Shape::kTileKeys] =
        row_place(p.batch, is_v ? p.v : p.k, page, key_of(tile), item.work.kv_head);
  }
  __device__ __forceinline__ void copy(int tile, bool is_v, std::uint32_t s_tile) const {
    const PagedTensor& tensor = is_v ? p.v : p.k;
    const int thread = static_cast<int>(opaque(threadIdx.x)), chunk = thread % kChunks, first_row = thread / kChunks;
    const char* column = static_cast<const char*>(tensor.data) + chunk * kChunkBytes;
    const bool chunk_exists = chunk * kChunkElems < p.head_dim;
    const auto copy_row = [&](int row, bool aligned) {
      load_key_chunk(s_tile + tile_offset_bytes(row, chunk, Shape::kHeadDim), column, s_places[tile & 1][is_v][row],
                     chunk_exists, aligned);
    };
    if (tensor.aligned) {
#pragma unroll 4
      for (int row = first_row; row < first_row + Shape::kTileKeys; row += kRowsPerPass) copy_row(row, true);
    } else {
#pragma unroll 1
      for (int row = first_row; row < first_row + Shape::kTileKeys; row += kRowsPerPass) copy_row(row, false);
    }
  }
};

// Brings the bias window of a key tile to shared memory, when the tile needs one; part of K's copy group.
template <class T, class Shape>
__device__ __forceinline__ void copy_bias_window(const AttentionParams& p, const Item& item, const BiasView<T>& bias,
                                                 int tile) {
  const Range keys{tile * Shape::kTileKeys, (tile + 1) * Shape::kTileKeys};
  if (!needs_bias(item, keys)) return;
  if (!bias.windowed) return;
  if (p.bias.route == Route::kFused) {
    copy_proj_window<T, Shape::kThreads>(p.bias, bias.s_rows[0].q_pos, keys.begin, Shape::kTileKeys,
                                         Shape::kTileKeys + item.tokens.size() - 1, bias.proj_rows, bias.s_proj);
  } else {
    const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
    copy_logits_window<16 * Shape::kRowBlocks>(p.bias, bias.s_rows, keys.begin, Shape::kTileKeys, bias.s_logits, [=](int line) {
      return warp_row + line / 16 * Shape::kRowBlockStride + line % 16;
    });
  }
}

// Where the bias of the item in shared memory is made from.
template <class T, class Shape>
__device__ __forceinline__ BiasView<T> make_bias_view(const AttentionParams& p, const RowInfo* s_rows, unsigned char* s_extra) {
  T* s_rel = reinterpret_cast<T*>(s_extra);
  const bool windowed = p.bias.route == Route::kFused
                            ? p.bias.rel_steps <= kMaxWindowSteps
                            : p.bias.route == Route::kSheared && p.bias.logits_dtype != DType::kFloat32;
  return {p.bias,
          s_rows,
          s_rel,
          reinterpret_cast<float*>(s_extra) + static_cast<int>(threadIdx.x) / 32 * rectangle_elems(Shape::kBiasKeys),
          windowed,
          s_rel + Shape::kTileRows * p.bias.rel_steps * kRelStep,
          Shape::kWindowRows,
          reinterpret_cast<std::uint16_t*>(s_extra)};
}

// S += Q K^T of one warp: kRowBlocks blocks of 16 rows, all keys of the tile.
template <class T, class Shape>
__device__ __forceinline__ void multiply_qk(float (&score)[Shape::kRowBlocks][Shape::kKeyBlocks][4], std::uint32_t s_q,
                                            std::uint32_t s_k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Cell q_cell = ldmatrix_down_cell(lane), k_cell = ldmatrix_across_cell(lane);
  const std::uint32_t q_lane = opaque(s_q + tile_offset_bytes(q_cell.row, q_cell.col / 8, Shape::kHeadDim));
  const std::uint32_t k_lane = opaque(s_k + tile_offset_bytes(k_cell.row, k_cell.col / 8, Shape::kHeadDim));
#pragma unroll
  for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
    std::uint32_t a[Shape::kRowBlocks][4];
#pragma unroll
    for (int r = 0; r < Shape::kRowBlocks; ++r)
      ldmatrix_x4(a[r], flip_chunk(q_lane, step * 2) + r * Shape::kRowBlockStride * Shape::kHeadDim * 2);
#pragma unroll
    for (int n = 0; n < Shape::kKeyBlocks; n += 2) {
      std::uint32_t b[4];
      ldmatrix_x4(b, flip_chunk(k_lane, step * 2) + n * 8 * Shape::kHeadDim * 2);
#pragma unroll
      for (int r = 0; r < Shape::kRowBlocks; ++r) {
        mma_16x8x16<T>(score[r][n], a[r], b[0], b[1]);
        mma_16x8x16<T>(score[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// O += P V of one warp; the probabilities become A operands where they lie.
template <class T, class Shape>
__device__ __forceinline__ void multiply_pv(float (&out)[Shape::kRowBlocks][Shape::kDimBlocks][4],
                                            const float (&prob)[Shape::kRowBlocks][Shape::kKeyBlocks][4], std::uint32_t s_v) {
  const Cell v_cell = ldmatrix_down_cell(static_cast<int>(threadIdx.x) % 32);
  const std::uint32_t v_lane = opaque(s_v + tile_offset_bytes(v_cell.row, v_cell.col / 8, Shape::kHeadDim));
#pragma unroll
  for (int n = 0; n < Shape::kKeyBlocks; n += 2) {
    std::uint32_t a[Shape::kRowBlocks][4];
#pragma unroll
    for (int r = 0; r < Shape::kRowBlocks; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[r][i] = pack2<T>(prob[r][n + i / 2][i % 2 * 2], prob[r][n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int d = 0; d < Shape::kDimBlocks; d += 2) {
      std::uint32_t b[4];
      ldmatrix_x4_trans(b, flip_chunk(v_lane, d) + n * 8 * Shape::kHeadDim * 2);
#pragma unroll
      for (int r = 0; r < Shape::kRowBlocks; ++r) {
        mma_16x8x16<T>(out[r][d], a[r], b[0], b[1]);
        mma_16x8x16<T>(out[r][d + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// Normalises and writes one block of 16 rows; `s_stage` is the block's part of the q tile.
template <class T, class Shape>
__device__ __forceinline__ void store_row_block(const AttentionParams& p, const Item& item, const RowInfo* s_rows,
                                                int first_row, const float (&out)[Shape::kDimBlocks][4],
                                                const float (&max_log2)[2], const float (&lane_sum)[2],
                                                unsigned char* s_stage) {
  const int lane = opaque_lane();
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    const float sum = quad_sum(lane_sum[h]);
    factor[h] = finish_factor(sum);
    if (lane % 4 == 0) store_lse(p.output, item, s_rows[row], row, Shape::kTileRows, finish_lse(max_log2[h], sum));
  }
  if (item.work.slot >= 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + lane / 4 + 8 * h;
      float* part = part_row(p, item, row, Shape::kTileRows) + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < Shape::kDimBlocks; ++d)
        if (s_rows[row].token >= 0 && d * 8 < p.head_dim)
          *reinterpret_cast<float2*>(part + d * 8) = {out[d][2 * h] * factor[h], out[d][2 * h + 1] * factor[h]};
    }
    return;
  }
  __syncwarp();  // SYNC: this warp has read its q rows for the last time
#pragma unroll
  for (int d = 0; d < Shape::kDimBlocks; ++d)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + 8 * h;
      const std::uint32_t packed = pack2<T>(out[d][2 * h] * factor[h], out[d][2 * h + 1] * factor[h]);
      *reinterpret_cast<std::uint32_t*>(s_stage + tile_offset_bytes(row, d, Shape::kHeadDim) + lane % 4 * 4) = packed;
    }
  __syncwarp();  // SYNC: the block is staged
  constexpr int kChunks = Shape::kHeadDim / kChunkElems;
#pragma unroll 4
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks;
    const RowInfo& info = s_rows[first_row + row];
    const uint4 packed = *reinterpret_cast<const uint4*>(s_stage + tile_offset_bytes(row, chunk, Shape::kHeadDim));
    if (info.token >= 0 && chunk * kChunkElems < p.head_dim)
      store_out_chunk(out_row<T>(p.output, info) + chunk * kChunkElems, packed, p.output.out.aligned);
  }
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 2) attention_rows_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ int s_index, s_n_items;
  alignas(Item) __shared__ unsigned char work_bytes[sizeof(Item)];  // Item's members have initialisers
  Item& s_work = *reinterpret_cast<Item*>(work_bytes);
  auto* const s_places = reinterpret_cast<std::int64_t(*)[2][Shape::kTileKeys]>(smem + Shape::kPlacesAt);
  auto* const s_rows = reinterpret_cast<RowInfo*>(smem + Shape::kRowsAt);
  const std::uint32_t s_q = smem_address(smem), s_k = s_q + Shape::kKeysAt, s_v = s_q + Shape::kValuesAt;
  const int thread = static_cast<int>(threadIdx.x);
  // First row of the warp's block 0; block r is kRowBlockStride rows further.
  const auto warp_row = [] { return static_cast<int>(opaque(threadIdx.x)) / 32 * 16; };
  if (thread == 0) {
    s_n_items = p.work.header->n_items;
    s_index = claim_item(p.work);
  }
  for (;;) {
    __syncthreads();  // SYNC: the previous item is done with shared memory, and s_index is there
    const int index = s_index;
    if (index >= s_n_items) return;
    if (thread == 0) s_work = load_item(p, index, Shape::kTileRows);
    __syncthreads();  // SYNC: the item is there; everybody has read s_index
    for (int row = thread; row < Shape::kTileRows; row += Shape::kThreads) s_rows[row] = make_row_info(p, s_work, row);
    int tile = s_work.work.tile_end - 1;
    TileLoader<T, Shape> loader{p, s_work, s_places, kNoPage};
    loader.fetch_page(tile);
    loader.publish_places(tile);
    loader.fetch_page(tile - 1);
    __syncthreads();  // SYNC: rows and the first places are visible
    load_query_tile<T, Shape::kTileRows, Shape::kHeadDim, Shape::kThreads>(p, s_rows, s_q);
    // Made anew where it is used: kept, it would cost the main loop registers.
    const auto bias = [&] { return make_bias_view<T, Shape>(p, s_rows, smem + Shape::kExtraAt); };
    if (p.bias.route == Route::kFused) load_rel_rows<T, Shape::kThreads>(p, s_rows, Shape::kTileRows, bias().s_rel);
    if (tile >= s_work.work.tile_begin) {
      loader.copy(tile, false, s_k);
      copy_bias_window<T, Shape>(p, s_work, bias(), tile);
    }
    cp_async_commit();
    // The counter's latency hides behind the copies.
    if (thread == 0) s_index = claim_item(p.work);

    float out[Shape::kRowBlocks][Shape::kDimBlocks][4];
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks * Shape::kDimBlocks * 4; ++i)
      out[i / 4 / Shape::kDimBlocks][i / 4 % Shape::kDimBlocks][i % 4] = 0.0f;
    const StoredSoftmaxState<Shape::kRowBlocks, Shape::kThreads> stored{reinterpret_cast<float2*>(smem + Shape::kStateAt)};
    {
      SoftmaxState<Shape::kRowBlocks> empty;
      empty.clear();
      stored.store(empty);
    }

#pragma unroll 1
    for (; tile >= s_work.work.tile_begin; --tile) {
      float score[Shape::kRowBlocks][Shape::kKeyBlocks][4];
      cp_async_wait<0>();
      __syncthreads();  // SYNC: K(t) is here; V(t + 1) has been read
      loader.copy(tile, true, s_v);
      cp_async_commit();
      loader.publish_places(tile - 1);
      loader.fetch_page(tile - 2);
      const Range keys{tile * Shape::kTileKeys, (tile + 1) * Shape::kTileKeys};
      const bool with_bias = needs_bias(s_work, keys);
      static_for<Shape::kRowBlocks>(
          [&](auto r) { init_scores(score[r], bias(), warp_row() + r * Shape::kRowBlockStride, keys.begin, with_bias); });
      multiply_qk<T, Shape>(score, s_q + warp_row() * Shape::kHeadDim * 2, s_k);

      cp_async_wait<0>();
      __syncthreads();  // SYNC: V(t) and the places of the next tile are here; K(t) has been read
      if (tile > s_work.work.tile_begin) {
        loader.copy(tile - 1, false, s_k);
        copy_bias_window<T, Shape>(p, s_work, bias(), tile - 1);
      }
      cp_async_commit();

      float scale = p.scale_log2;
      if (!(scale > 0.0f)) {  // the softmax finds maxima before it scales
        static_for<Shape::kRowBlocks>([&](auto r) { scale_scores(score[r], scale); });
        scale = 1.0f;
      }
      if (needs_mask(s_work, keys))
        static_for<Shape::kRowBlocks>(
            [&](auto r) { mask_scores(score[r], s_rows, warp_row() + r * Shape::kRowBlockStride, keys.begin); });
      SoftmaxState<Shape::kRowBlocks> state = stored.load();
      online_softmax(score, out, state, scale);
      stored.store(state);
      multiply_pv<T, Shape>(out, score, s_v);
    }
    cp_async_wait<0>();

    const SoftmaxState<Shape::kRowBlocks> state = stored.load();
    static_for<Shape::kRowBlocks>([&](auto r) {
      const int first_row = warp_row() + r * Shape::kRowBlockStride;
      if (first_row < s_work.work.n_rows)
        store_row_block<T, Shape>(p, s_work, s_rows, first_row, out[r], state.max_log2[r], state.sum[r],
                                  smem + first_row * Shape::kHeadDim * 2);
    });
  }
}

}  // namespace flashrel::mma
