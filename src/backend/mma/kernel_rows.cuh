// Kernel for many packed rows (prefill, chunks, multi-token decode): warps split the rows, all share a tile of keys.
//
//   persistent CTAs take work items from a counter; an item is kTileRows rows x a range of key tiles, newest tile first;
//   per key tile:  S = Q K^T -> bias, mask -> online softmax -> O += P V          (mma.sync, float32 accumulators)
//
// SHARED MEMORY (bytes for head_dim 128)
//   q        [kTileRows][kHeadDim] T, swizzled            32 K
//   k, v     [kTileKeys][kHeadDim] T, swizzled, one each  16 K + 16 K   v also stages output rows, a quarter a warp
//   places   [K, V][kChunkKeys] addresses                  4 K   of the key rows of a chunk of tiles (gpu/page_loader.cuh)
//   rows     [2 items][kTileRows] RowInfo                  4 K
//   state    [kRowBlocks][max, sum][kThreads] float2       4 K   softmax state between tiles
//   items    two items and the counter's state           0.4 K
//   extra    fused: rel rows [kTileRows][rel_steps * 16] T and a bias window; sheared: a bias window, or rectangles
//
// ITEMS follow each other without a gap: while an item's last tile runs, the next item's rows are prepared and its first K
// tile is on its way; its q rows follow as soon as the last P V is done. So an item is taken from the counter one item ahead.
//
// BARRIERS: two __syncthreads a tile. The first makes K(t) (and at an item's first tile q) visible and frees the V buffer, the
// second makes V(t) visible and frees the K buffer, q, the bias window and the places; so V(t) arrives behind Q K^T, and
// K(t+1) behind softmax and P V. A third one publishes the places of a new chunk, a fourth one ends an item.
#pragma once

#include "backend/mma/shapes.hpp"
#include "backend/mma/tile_loader.cuh"
#include "gpu/bias.cuh"
#include "gpu/cp_async.cuh"
#include "gpu/epilogue.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/online_softmax.cuh"
#include "gpu/rows.cuh"
#include "gpu/static_for.cuh"

namespace flashrel::mma {

using namespace flashrel::gpu;

// What the CTA shares about its work: the present item and the next one, by turns.
struct WorkState {
  Item items[2];  // work.n_rows == 0: there is none
  int claimed;    // index of the item to be loaded next; thread 0 only, like n_items
  int n_items;
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

// Where the bias of an item is made from in shared memory.
template <class T, class Shape>
__device__ __forceinline__ BiasView<T> make_bias_view(const AttentionParams& p, const Item& item, const RowInfo* s_rows,
                                                      unsigned char* s_extra) {
  T* s_rel = reinterpret_cast<T*>(s_extra);
  const bool windowed = p.bias.route == Route::kFused
                            ? p.bias.rel_steps <= kMaxWindowSteps
                            : p.bias.route == Route::kSheared && p.bias.logits_dtype != DType::kFloat32;
  return {p.bias,
          s_rows,
          s_rel,
          reinterpret_cast<float*>(s_extra) + static_cast<int>(threadIdx.x) / 32 * rectangle_elems(Shape::kBiasKeys),
          windowed,
          item.paired,
          s_rel + Shape::kTileRows * p.bias.rel_steps * kRelStep,
          Shape::kWindowRows,
          reinterpret_cast<std::uint16_t*>(s_extra)};
}

// S += Q K^T of one warp: kRowBlocks blocks of 16 rows, all keys of the tile. between(step) is issued among the products.
template <class T, class Shape, class Between>
__device__ __forceinline__ void multiply_qk(float (&score)[Shape::kRowBlocks][Shape::kKeyBlocks][4], std::uint32_t s_q,
                                            std::uint32_t s_k, Between&& between) {
  const int lane = opaque_lane();
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
    between(step);
  }
}

// O += P V of one warp; the probabilities become A operands where they lie.
template <class T, class Shape>
__device__ __forceinline__ void multiply_pv(float (&out)[Shape::kRowBlocks][Shape::kDimBlocks][4],
                                            const float (&prob)[Shape::kRowBlocks][Shape::kKeyBlocks][4], std::uint32_t s_v) {
  const Cell v_cell = ldmatrix_down_cell(opaque_lane());
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

// Normalises and writes one block of 16 rows; `s_stage` is the warp's share of the V buffer.
template <class T, class Shape>
__device__ __forceinline__ void store_row_block(const AttentionParams& p, const Item& item, const RowInfo* s_rows,
                                                int first_row, const float (&out)[Shape::kDimBlocks][4],
                                                const float (&max_log2)[2], const float (&lane_sum)[2],
                                                unsigned char* s_stage) {
  const int lane = opaque_lane();
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int place = first_row + lane / 4 + 8 * h;
    const float sum = quad_sum(lane_sum[h]);
    factor[h] = finish_factor(sum);
    if (lane % 4 == 0)
      store_lse(p.output, item, s_rows[place], row_at(p, item, place), Shape::kTileRows, finish_lse(max_log2[h], sum));
  }
  if (item.work.slot >= 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = first_row + lane / 4 + 8 * h;
      float* part = part_row(p, item, row_at(p, item, place), Shape::kTileRows) + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < Shape::kDimBlocks; ++d)
        if (s_rows[place].token >= 0 && d * 8 < p.head_dim)
          *reinterpret_cast<float2*>(part + d * 8) = {out[d][2 * h] * factor[h], out[d][2 * h + 1] * factor[h]};
    }
    return;
  }
  constexpr int kStageRows = Shape::kStageRows, kChunks = Shape::kHeadDim / kChunkElems;
  const RowInfo& mine = s_rows[first_row + lane % 16];  // whose address this lane hands round
  const auto address = mine.token >= 0 ? reinterpret_cast<unsigned long long>(out_row<T>(p.output, mine)) : 0;
#pragma unroll
  for (int begin = 0; begin < 16; begin += kStageRows) {
    __syncwarp();  // SYNC: what was staged before has been written
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int d = 0; d < Shape::kDimBlocks; ++d)
        if (h * 8 >= begin && h * 8 < begin + kStageRows) {
          const int row = lane / 4 + 8 * h - begin;
          const std::uint32_t packed = pack2<T>(out[d][2 * h] * factor[h], out[d][2 * h + 1] * factor[h]);
          *reinterpret_cast<std::uint32_t*>(s_stage + tile_offset_bytes(row, d, Shape::kHeadDim) + lane % 4 * 4) = packed;
        }
    __syncwarp();  // SYNC: the rows are staged
#pragma unroll 4
    for (int i = lane; i < kStageRows * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      const unsigned long long target = __shfl_sync(kAllLanes, address, begin + row);
      const uint4 packed = *reinterpret_cast<const uint4*>(s_stage + tile_offset_bytes(row, chunk, Shape::kHeadDim));
      if (target != 0 && chunk * kChunkElems < p.head_dim)
        store_out_chunk(reinterpret_cast<T*>(target) + chunk * kChunkElems, packed, p.output.out.aligned);
    }
  }
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtasPerSm)
    attention_rows_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  WorkState& s_work = *reinterpret_cast<WorkState*>(smem + Shape::kItemsAt);
  static_assert(sizeof(WorkState) <= Shape::kItemsBytes);
  using Loader = TileLoader<T, Shape>;
  const std::uint32_t s_q = smem_address(smem), s_k = s_q + Shape::kKeysAt, s_v = s_q + Shape::kValuesAt;
  const int thread = static_cast<int>(threadIdx.x);
  const Loader loader{p, reinterpret_cast<const char*(*)[Shape::kChunkKeys]>(smem + Shape::kPlacesAt)};
  const StoredSoftmaxState<Shape::kThreads> stored{reinterpret_cast<float2*>(smem + Shape::kStateAt)};
  // First row of the warp's block 0; block r is kRowBlockStride rows further.
  const auto warp_row = [] { return static_cast<int>(opaque(threadIdx.x)) / 32 * 16; };
  const auto rows_of = [&](int side) {
    return reinterpret_cast<RowInfo*>(smem + Shape::kRowsAt + opaque(side) * (Shape::kTileRows * sizeof(RowInfo)));
  };
  const auto other = [](int side) { return static_cast<int>(opaque(side)) ^ 1; };
  const auto item_of = [&](int side) -> Item& { return s_work.items[opaque(side)]; };
  // Made anew where it is used: kept, it would cost the main loop registers.
  const auto bias_of = [&](int side) {
    return make_bias_view<T, Shape>(p, item_of(side), rows_of(side), smem + Shape::kExtraAt);
  };
  // The tile after tile `tile` of the item on `side`: its next one, or the first one of the item on the other side.
  struct Coming {
    int side, tile;
  };
  const auto coming = [&](int side, int tile) -> Coming {
    const bool is_last = tile <= item_of(side).work.tile_begin;
    return {side ^ is_last, (is_last ? item_of(other(side)).work.tile_end : tile) - 1};
  };
  const auto clear_item = [&](int side) {
    Item& item = reinterpret_cast<WorkState*>(smem + opaque(Shape::kItemsAt))->items[side];
    item.work = WorkItem{};
    item.keys = item.band = Range{0, 0};
  };
  const auto load_claimed = [&](int side) {  // by thread 0
    const int index = first_served_item(p.work, s_work.claimed);
    if (index < s_work.n_items)
      item_of(side) = load_item(p, index, Shape::kTileRows);
    else
      clear_item(side);
  };
  const auto make_rows = [&](int side) {
    for (int row = static_cast<int>(opaque(threadIdx.x)); row < Shape::kTileRows; row += Shape::kThreads)
      rows_of(side)[row] = make_row_info(p, item_of(side), row);
  };
  const auto copy_queries = [&](int side) {
    load_query_tile<T, Shape::kTileRows, Shape::kHeadDim, Shape::kThreads>(p, rows_of(side), s_q);
    if (p.bias.route == Route::kFused)
      load_rel_rows<T, Shape::kThreads>(p, rows_of(side), Shape::kTileRows, bias_of(side).s_rel);
  };
  if (thread == 0) {  // an item without rows and tiles comes first: it brings the first real one
    s_work.n_items = p.work.header->n_items;
    s_work.claimed = claim_item(p.work);
    clear_item(0);
  }
  __syncthreads();  // SYNC: the item is there

#pragma unroll 1
  for (int side = 0;; side ^= 1) {
    float out[Shape::kRowBlocks][Shape::kDimBlocks][4];
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks * Shape::kDimBlocks * 4; ++i)
      out[i / 4 / Shape::kDimBlocks][i / 4 % Shape::kDimBlocks][i % 4] = 0.0f;
    {
      SoftmaxState<Shape::kRowBlocks> empty;
      empty.clear();
      stored.store(empty);
    }

#pragma unroll 1
    for (int tile = item_of(side).work.tile_end - 1; tile >= item_of(side).work.tile_begin; --tile) {
      float score[Shape::kRowBlocks][Shape::kKeyBlocks][4];
      // What decides the way through the tile is read before a barrier, so that its latency is part of the wait.
      const Range tiles{item_of(side).work.tile_begin, item_of(side).work.tile_end};
      const Range keys{tile * Shape::kTileKeys, (tile + 1) * Shape::kTileKeys};
      const bool with_bias = needs_bias(item_of(side), keys);
      cp_async_wait<0>();
      __syncthreads();  // SYNC: K(t) is here; V(t + 1) has been read
      if (tile == tiles.end - 1) {
        if (thread == 0) load_claimed(other(side));
        if (tile == tiles.begin) __syncthreads();  // SYNC: the next item is there
      }
      int pages[Loader::kLookups];
      if (tile == tiles.begin || Loader::ends_chunk(tile)) {
        const auto [coming_side, coming_tile] = coming(side, tile);
        loader.fetch_pages(item_of(coming_side), coming_tile, pages);
        if (coming_side != side && item_of(coming_side).work.n_rows > 0) make_rows(coming_side);
      }

      const auto row_of = [&](int r) { return warp_row() + r * Shape::kRowBlockStride; };
      static_for<Shape::kRowBlocks>([&](auto r) { clear_scores(score[r]); });
      loader.copy_unaligned(loader.part_of(tile, true, s_v));
      const auto multiply = [&] {  // V(t) is sent for among the products
        const typename Loader::Part values = loader.part_of(tile, true, s_v);
        const char* source = Loader::source(values, 0);
        multiply_qk<T, Shape>(score, s_q + warp_row() * Shape::kHeadDim * 2, s_k, [&](int step) {
          constexpr int kStepsPerPass = Shape::kHeadDim / 16 / Loader::kPasses;
          if (step % kStepsPerPass != 0) return;
          const int pass = step / kStepsPerPass;
          Loader::copy_pass(values, pass, source);
          if (pass + 1 < Loader::kPasses) source = Loader::source(values, pass + 1);
        });
      };
      if (with_bias) {
        add_bias(score, bias_of(side), keys.begin, row_of);
        multiply();
      } else {  // apart, so that the first products need no zeros to be added to
        multiply();
      }
      cp_async_commit();

      const auto [coming_side, coming_tile] = coming(side, tile);
      const bool masked = needs_mask(item_of(side), keys);
      cp_async_wait<0>();
      __syncthreads();  // SYNC: V(t) is here; K(t) and the places of V(t) have been read
      if (coming_side != side || Loader::ends_chunk(tile)) {
        loader.publish_places(item_of(coming_side), coming_tile, pages);
        __syncthreads();  // SYNC: the places of the coming chunk are visible
      }
      loader.copy(coming_tile, false, s_k);
      if (p.bias.route != Route::kNone) copy_bias_window<T, Shape>(p, item_of(coming_side), bias_of(coming_side), coming_tile);
      cp_async_commit();

      float scale = p.scale_log2;
      if (!(scale > 0.0f)) {  // the softmax finds maxima before it scales
        static_for<Shape::kRowBlocks>([&](auto r) { scale_scores(score[r], scale); });
        scale = 1.0f;
      }
      if (masked)
        static_for<Shape::kRowBlocks>(
            [&](auto r) { mask_scores(score[r], p, item_of(side), rows_of(side), row_of(r), keys.begin); });
      SoftmaxState<Shape::kRowBlocks> state = stored.template load<Shape::kRowBlocks>();
      online_softmax(score, out, state, scale);
      stored.store(state);
      multiply_pv<T, Shape>(out, score, s_v);
    }
    if (item_of(side).work.tile_end <= item_of(side).work.tile_begin) {  // no tile ran: nothing was done for the next item
      cp_async_wait<0>();
      __syncthreads();  // SYNC: q has arrived; the item before is done with its side
      if (thread == 0) load_claimed(other(side));
      __syncthreads();  // SYNC: the next item is there
      const int coming_tile = item_of(other(side)).work.tile_end - 1;
      int pages[Loader::kLookups];
      loader.fetch_pages(item_of(other(side)), coming_tile, pages);
      if (item_of(other(side)).work.n_rows > 0) make_rows(other(side));
      loader.publish_places(item_of(other(side)), coming_tile, pages);
      __syncthreads();  // SYNC: rows and places are visible
      loader.copy(coming_tile, false, s_k);
      copy_bias_window<T, Shape>(p, item_of(other(side)), bias_of(other(side)), coming_tile);
    }
    const bool goes_on = item_of(other(side)).work.n_rows > 0;
    int claimed = 0;
    if (goes_on && thread == 0) claimed = claim_item(p.work);
    if (goes_on) copy_queries(other(side));
    cp_async_commit();
    __syncthreads();  // SYNC: V(t) of the last tile has been read

    const SoftmaxState<Shape::kRowBlocks> state = stored.template load<Shape::kRowBlocks>();
    static_for<Shape::kRowBlocks>([&](auto r) {
      const int first_row = warp_row() + r * Shape::kRowBlockStride;
      if (item_of(side).work.n_rows > 0 && rows_of(side)[first_row].token >= 0)
        store_row_block<T, Shape>(p, item_of(side), rows_of(side), first_row, out[r], state.max_log2[r], state.sum[r],
                                  smem + Shape::kValuesAt + warp_row() * Shape::kStageRows * Shape::kHeadDim * 2 / 16);
    });
    if (thread == 0) s_work.claimed = claimed;
    if (!goes_on) break;
  }
  cp_async_wait<0>();
}

}  // namespace flashrel::mma
