// Kernel for few packed rows (decode, at most 16 rows a tile): the rows are shared, warps split the keys.
//
// Every warp walks its own 16 keys of each tile through its own ring of K and V slots and keeps its own softmax state, so
// that warps never wait for each other while the cache streams in; at the end of an item the states are merged in the
// order of the warps.
//
// SHARED MEMORY (bytes for head_dim 128)
//   rings  [kWarps][kSlots][16 keys][kHeadDim] T, swizzled  64 K   loads 2t = K, 2t + 1 = V of the warp's t-th tile
//   merge  [kWarps][16][kMergeStride] float + max, sum             overlays the rings when the item's last tile is done
//   q      [16][kHeadDim] T, swizzled                        4 K
//   rows   [16] RowInfo                                    0.5 K
//   extra  fused: rel rows; sheared: a rectangle a warp
//
// BARRIERS: __syncthreads around an item's start and its merge only; inside the loop cp.async groups and __syncwarp.
#pragma once

#include "backend/mma/shapes.hpp"
#include "gpu/bias.cuh"
#include "gpu/cp_async.cuh"
#include "gpu/epilogue.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/online_softmax.cuh"
#include "gpu/page_loader.cuh"
#include "gpu/rows.cuh"

namespace flashrel::mma {

using namespace flashrel::gpu;

// A warp's ring. Lane l looks up key l % 16 of the warp, for K (l < 16) or V, and hands the place out by shuffles.
template <class T, class Shape>
struct WarpRing {
  static constexpr int kChunks = Shape::kHeadDim / kChunkElems, kRowsPerPass = 32 / kChunks;

  const AttentionParams& p;
  const Item& item;
  int first_key;  // of the warp inside a tile
  std::uint32_t s_ring;

  __device__ __forceinline__ int key_of(int tile) const {
    return tile * Shape::kTileKeys + first_key + static_cast<int>(threadIdx.x) % Shape::kWarpKeys;
  }
  __device__ __forceinline__ int fetch_page(int tile) const {
    return tile >= item.work.tile_begin ? key_page(p.batch, item, key_of(tile)) : kNoPage;
  }
  __device__ __forceinline__ const char* place_of(int tile, int page) const {
    const bool is_v = threadIdx.x % 32 >= Shape::kWarpKeys;
    return key_row(p.batch, is_v ? p.v : p.k, is_v ? item.v_head : item.k_head, page, key_of(tile));
  }
  // Starts one load and closes its group; `exists` is false past the last tile.
  __device__ __forceinline__ void load(int slot, bool is_v, const char* lane_place, bool exists) const {
    const PagedTensor& tensor = is_v ? p.v : p.k;
    const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % kChunks;
    const bool chunk_exists = chunk * kChunkElems < p.head_dim;
    const auto load_row = [&](int i, bool aligned) {
      const int row = i * kRowsPerPass + lane / kChunks;
      const auto place =
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(lane_place), row + (is_v ? Shape::kWarpKeys : 0));
      load_key_chunk(s_ring + slot * Shape::kSlotBytes + tile_offset_bytes(row, chunk, Shape::kHeadDim),
                     reinterpret_cast<const char*>(place) + chunk * kChunkBytes, chunk_exists, aligned);
    };
    if (exists && tensor.aligned) {
#pragma unroll
      for (int i = 0; i < Shape::kWarpKeys / kRowsPerPass; ++i) load_row(i, true);
    } else if (exists) {
#pragma unroll 1
      for (int i = 0; i < Shape::kWarpKeys / kRowsPerPass; ++i) load_row(i, false);
    }
    cp_async_commit();
  }
};

// Merges the warps' states of one item and writes the rows; warp w finishes rows w, w + kWarps, ...
template <class T, class Shape>
__device__ __forceinline__ void merge_and_store(const AttentionParams& p, const Item& item, const RowInfo* s_rows,
                                                const float (&out)[1][Shape::kDimBlocks][4], const SoftmaxState<1>& state,
                                                float* merge) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* const s_max = merge + Shape::kWarps * Shape::kTileRows * Shape::kMergeStride;  // [warp][row]
  float* const s_sum = s_max + Shape::kWarps * Shape::kTileRows;
  __syncthreads();  // SYNC: all warps are done with their rings
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
    const float sum = quad_sum(state.sum[0][h]);
    if (lane % 4 == 0) {
      s_max[warp * Shape::kTileRows + row] = state.max_log2[0][h];
      s_sum[warp * Shape::kTileRows + row] = sum;
    }
    float* destination = merge + (warp * Shape::kTileRows + row) * Shape::kMergeStride + lane % 4 * 2;
    if (row < item.work.n_rows)
#pragma unroll
      for (int d = 0; d < Shape::kDimBlocks; ++d)
        *reinterpret_cast<float2*>(destination + d * 8) = {out[0][d][2 * h], out[0][d][2 * h + 1]};
  }
  __syncthreads();  // SYNC: all states are in shared memory
  for (int row = warp; row < item.work.n_rows; row += Shape::kWarps) {
    float max_log2 = kEmptyLse, sum = 0.0f, weight[Shape::kWarps];
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) max_log2 = fmaxf(max_log2, s_max[w * Shape::kTileRows + row]);
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      const float mine = s_max[w * Shape::kTileRows + row];
      weight[w] = mine == kEmptyLse ? 0.0f : exp2_approx(mine - max_log2);
      sum += weight[w] * s_sum[w * Shape::kTileRows + row];
    }
    const RowInfo& info = s_rows[row];
    if (lane == 0) store_lse(p.output, item, info, row, p.tile_rows, finish_lse(max_log2, sum));
    const float factor = finish_factor(sum);
    for (int dim = lane * 4; dim < p.head_dim; dim += 128) {
      float4 total{0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        const float4 x = *reinterpret_cast<const float4*>(merge + (w * Shape::kTileRows + row) * Shape::kMergeStride + dim);
        total.x += weight[w] * x.x, total.y += weight[w] * x.y, total.z += weight[w] * x.z, total.w += weight[w] * x.w;
      }
      total.x *= factor, total.y *= factor, total.z *= factor, total.w *= factor;
      if (item.work.slot >= 0) {
        *reinterpret_cast<float4*>(part_row(p, item, row, p.tile_rows) + dim) = total;
      } else {
        T* destination = out_row<T>(p.output, info) + dim;
        const uint2 packed{pack2<T>(total.x, total.y), pack2<T>(total.z, total.w)};
        if (p.output.out.aligned) {
          *reinterpret_cast<uint2*>(destination) = packed;
        } else {
          destination[0] = from_float<T>(total.x), destination[1] = from_float<T>(total.y);
          destination[2] = from_float<T>(total.z), destination[3] = from_float<T>(total.w);
        }
      }
    }
  }
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtasPerSm)
    attention_keys_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ int s_index;
  alignas(Item) __shared__ unsigned char work_bytes[sizeof(Item)];  // Item's members have initialisers
  Item& s_work = *reinterpret_cast<Item*>(work_bytes);
  auto* const s_rows = reinterpret_cast<RowInfo*>(smem + Shape::kRowsAt);
  const std::uint32_t s_q = smem_address(smem + Shape::kQueriesAt);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Cell down = ldmatrix_down_cell(lane), across = ldmatrix_across_cell(lane);
  const std::uint32_t s_ring = smem_address(smem) + warp * Shape::kSlots * Shape::kSlotBytes;
  const int n_items = p.work.header->n_items;

  if (thread == 0) s_index = first_served_item(p.work, claim_item(p.work));
  for (;;) {
    __syncthreads();  // SYNC: the previous item is done with shared memory, and s_index is there
    const int index = s_index;
    if (index >= n_items) return;
    if (thread == 0) s_work = load_item(p, index, p.tile_rows);
    __syncthreads();  // SYNC: the item is there; everybody has read s_index
    if (thread < Shape::kTileRows) s_rows[thread] = make_row_info(p, s_work, thread);
    const WarpRing<T, Shape> ring{p, s_work, warp * Shape::kWarpKeys, s_ring};
    int tile = s_work.work.tile_end - 1;
    const char* place = ring.place_of(tile, ring.fetch_page(tile));
    const char* next_place = ring.place_of(tile - 1, ring.fetch_page(tile - 1));
    int page = ring.fetch_page(tile - 2);
    __syncthreads();  // SYNC: rows are visible
    load_query_tile<T, Shape::kTileRows, Shape::kHeadDim, Shape::kThreads>(p, s_rows, s_q);
    T* const s_rel = reinterpret_cast<T*>(smem + Shape::kExtraAt);
    if (p.bias.route == Route::kFused) load_rel_rows<T, Shape::kThreads>(p, s_rows, Shape::kTileRows, s_rel);
    cp_async_commit();
    ring.load(0, false, place, tile >= s_work.work.tile_begin);
    ring.load(1, true, place, tile >= s_work.work.tile_begin);
    ring.load(2, false, next_place, tile - 1 >= s_work.work.tile_begin);

    // The counter's latency hides behind the copies.
    if (thread == 0) s_index = first_served_item(p.work, claim_item(p.work));

    const BiasView<T> bias{
        p.bias, s_rows, s_rel,   reinterpret_cast<float*>(smem + Shape::kExtraAt) + warp * rectangle_elems(Shape::kBiasKeys),
        false,  false,  nullptr, 0,
        nullptr};
    float out[1][Shape::kDimBlocks][4];
#pragma unroll
    for (int i = 0; i < Shape::kDimBlocks * 4; ++i) out[0][i / 4][i % 4] = 0.0f;
    SoftmaxState<1> state;
    state.clear();
    cp_async_wait<3>();
    __syncthreads();  // SYNC: q and rel are in shared memory
    std::uint32_t q[Shape::kHeadDim / 16][4];
#pragma unroll
    for (int step = 0; step < Shape::kHeadDim / 16; ++step)
      ldmatrix_x4(q[step], s_q + tile_offset_bytes(down.row, step * 2 + down.col / 8, Shape::kHeadDim));

    // The ring's position: 0 = slots 0, 1 hold this tile and slot 2 the next K; 2 = the other way round.
#pragma unroll 1
    for (int position = 0; tile >= s_work.work.tile_begin; --tile, position ^= 2) {
      const Range keys{tile * Shape::kTileKeys + warp * Shape::kWarpKeys,
                       tile * Shape::kTileKeys + (warp + 1) * Shape::kWarpKeys};
      const bool some_visible = !intersect(keys, s_work.keys).empty();
      float score[1][Shape::kKeyBlocks][4];
      cp_async_wait<Shape::kSlots - 2>();
      __syncwarp();  // SYNC: K of this tile is here; slot position ^ 3 (V of the tile before) has been read
      ring.load(position ^ 3, true, next_place, tile - 1 >= s_work.work.tile_begin);
      if (some_visible) {
        const std::uint32_t k_lane =
            opaque(s_ring + position * Shape::kSlotBytes + tile_offset_bytes(across.row, across.col / 8, Shape::kHeadDim));
        clear_scores(score[0]);
        if (needs_bias(s_work, keys)) add_bias(score, bias, keys.begin, [](int) { return 0; });
#pragma unroll
        for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
          std::uint32_t b[4];
          ldmatrix_x4(b, flip_chunk(k_lane, step * 2));
          mma_16x8x16<T>(score[0][0], q[step], b[0], b[1]);
          mma_16x8x16<T>(score[0][1], q[step], b[2], b[3]);
        }
        scale_scores(score[0], p.scale_log2);
        if (needs_mask(s_work, keys)) mask_scores(score[0], p, s_work, s_rows, 0, keys.begin);
        online_softmax(score, out, state, 1.0f);
      }
      next_place = ring.place_of(tile - 2, page);
      page = ring.fetch_page(tile - 3);
      cp_async_wait<Shape::kSlots - 2>();
      __syncwarp();  // SYNC: V of this tile is here; K of this tile has been read
      ring.load(position, false, next_place, tile - 2 >= s_work.work.tile_begin);
      if (some_visible) {
        const std::uint32_t v_lane =
            opaque(s_ring + (position ^ 1) * Shape::kSlotBytes + tile_offset_bytes(down.row, down.col / 8, Shape::kHeadDim));
        const std::uint32_t a[4] = {pack2<T>(score[0][0][0], score[0][0][1]), pack2<T>(score[0][0][2], score[0][0][3]),
                                    pack2<T>(score[0][1][0], score[0][1][1]), pack2<T>(score[0][1][2], score[0][1][3])};
#pragma unroll
        for (int d = 0; d < Shape::kDimBlocks; d += 2) {
          std::uint32_t b[4];
          ldmatrix_x4_trans(b, flip_chunk(v_lane, d));
          mma_16x8x16<T>(out[0][d], a, b[0], b[1]);
          mma_16x8x16<T>(out[0][d + 1], a, b[2], b[3]);
        }
      }
    }
    cp_async_wait<0>();
    merge_and_store<T, Shape>(p, s_work, s_rows, out, state, reinterpret_cast<float*>(smem));
  }
}

}  // namespace flashrel::mma
