// The packed rows of one work item: what every later step needs to know about a row, kept in shared memory, and the loaders
// that bring q (and rel) rows there.
#pragma once

#include <cstdint>

#include "gpu/cp_async.cuh"
#include "gpu/mma_sync.cuh"
#include "gpu/params.hpp"
#include "index/ranges.hpp"
#include "index/rows.hpp"
#include "index/swizzle.hpp"

namespace flashrel::gpu {

inline constexpr float kLn2 = 0.6931471805599453f;

struct alignas(16) RowInfo {
  int token;  // of all tokens; -1 = the row does not exist
  int head;   // query head
  int q_pos;
  float bias_factor;  // rel_scale / softmax_scale
};

// Element offset of the row's rel_logits.
__device__ __forceinline__ std::int64_t logits_offset(const BiasParams& p, const RowInfo& row) {
  return row.token * p.logits.token_stride + row.head * p.logits.head_stride;
}

// One work item; kept in shared memory, so that it costs the main loop no registers.
struct Item {
  WorkItem work;
  Lengths lengths;
  std::int64_t first_token;     // of the sequence, among all tokens
  const std::int32_t* table;    // the sequence's row of the block table
  const char *k_head, *v_head;  // first row of the KV head in the caches
  Range rows, tokens;           // of the sequence
  Range keys;                   // that some row sees: nothing else is read
  Range full;                   // that every row sees: tiles inside need no mask
  Range band;                   // whose bias some row reads: tiles outside need no bias
  bool paired;                  // how rows stand in the tile (index/rows.hpp)
};

__device__ __forceinline__ Item load_item(const AttentionParams& p, int index, int tile_rows) {
  Item item;
  item.work = p.work.items[index];
  item.lengths = p.batch.lengths(item.work.seq);
  item.first_token = p.batch.cu_q[item.work.seq * p.batch.cu_q_stride];
  item.table = p.batch.block_table + item.work.seq * p.batch.table_seq_stride;
  item.k_head = static_cast<const char*>(p.k.data) + item.work.kv_head * p.k.head_stride * 2;
  item.v_head = static_cast<const char*>(p.v.data) + item.work.kv_head * p.v.head_stride * 2;
  const int first_row = item.work.row_tile * tile_rows;
  item.rows = {first_row, first_row + item.work.n_rows};
  item.tokens = {p.group.quotient(item.rows.begin), p.group.quotient(item.rows.end - 1) + 1};
  item.keys = visible_keys(item.tokens, item.lengths, p.visible);
  item.full = full_keys(item.tokens, item.lengths, p.visible);
  item.band = {0, 0};
  if (p.bias.route != Route::kNone) item.band = visible_keys(item.tokens, item.lengths, intersect(p.visible, p.bias.band));
  item.paired = p.bias.pair_rows && item.work.n_rows == tile_rows;
  return item;
}

// The row of the tile, in packed order, that stands at a place.
__device__ __forceinline__ int row_at(const AttentionParams& p, const Item& item, int place) {
  return item.paired ? paired_row(place, static_cast<int>(p.group.divisor)) : place;
}

__device__ __forceinline__ bool needs_mask(const Item& item, Range keys) {
  return keys.begin < item.full.begin || item.full.end < keys.end;
}
__device__ __forceinline__ bool needs_bias(const Item& item, Range keys) { return !intersect(keys, item.band).empty(); }

// The row at a place of the item's tile; the caller stores it to shared memory.
__device__ __forceinline__ RowInfo make_row_info(const AttentionParams& p, const Item& item, int place) {
  // A row that does not exist shares the last row's position, so that a block of rows always has one run of positions.
  RowInfo info{-1, 0, q_pos(item.tokens.end - 1, item.lengths), p.bias.unit};
  if (place >= item.work.n_rows) return info;
  const int packed = item.rows.begin + row_at(p, item, place);
  const int token = p.group.quotient(packed);
  info.token = static_cast<int>(item.first_token) + token;
  info.head = item.work.kv_head * static_cast<int>(p.group.divisor) + packed - token * static_cast<int>(p.group.divisor);
  info.q_pos = q_pos(token, item.lengths);
  if (p.bias.rel_scale != nullptr) info.bias_factor = p.bias.unit * p.bias.rel_scale[info.token * p.bias.rel_scale_stride];
  return info;
}

// Copies one chunk of 8 elements to shared memory: asynchronously from an aligned source, else element by element (then it
// is there after the next barrier, like a finished group). Invalid chunks become zeros and touch no address.
template <class T>
__device__ __forceinline__ void load_chunk(std::uint32_t smem, const T* source, bool valid, bool aligned) {
  if (aligned) {
    cp_async_16(smem, source, valid);
    return;
  }
  alignas(16) std::uint16_t values[kChunkElems];
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i)
    values[i] = valid ? reinterpret_cast<const std::uint16_t*>(source)[i] : std::uint16_t{0};
  const uint4 packed = *reinterpret_cast<const uint4*>(values);
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(smem), "r"(packed.x), "r"(packed.y), "r"(packed.z), "r"(packed.w)
               : "memory");
}

// Brings the q rows of an item to a swizzled tile of kRows x kRowElems; rows and elements that do not exist become zeros.
// Every lane works out the address of one row and hands it round.
template <class T, int kRows, int kRowElems, int kThreads>
__device__ __forceinline__ void load_query_tile(const AttentionParams& p, const RowInfo* s_rows, std::uint32_t s_tile) {
  constexpr int kChunks = kRowElems / kChunkElems, kWarpRows = kRows * 32 / kThreads, kRowsPerPass = 32 / kChunks;
  static_assert(kWarpRows <= 32 && kWarpRows % kRowsPerPass == 0);
  const int lane = opaque_lane(), chunk = lane % kChunks;
  const int first_row = static_cast<int>(opaque(threadIdx.x)) / 32 * kWarpRows;
  const RowInfo& mine = s_rows[first_row + lane % kWarpRows];
  const bool exists = mine.token >= 0 && !p.scale_is_zero;
  const T* const q = static_cast<const T*>(p.q.data);
  const T* const my_row = exists ? q + mine.token * p.q.token_stride + mine.head * p.q.head_stride : nullptr;
  const auto load_rows = [&](int pass, bool aligned) {
    const int row = pass * kRowsPerPass + lane / kChunks;
    const auto* source = reinterpret_cast<const T*>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(my_row), row));
    const bool valid = source != nullptr && chunk * kChunkElems < p.head_dim;
    load_chunk(s_tile + tile_offset_bytes(first_row + row, chunk, kRowElems), valid ? source + chunk * kChunkElems : q, valid,
               aligned);
  };
  if (p.q.aligned) {
#pragma unroll 4
    for (int pass = 0; pass < kWarpRows / kRowsPerPass; ++pass) load_rows(pass, true);
  } else {
#pragma unroll 1
    for (int pass = 0; pass < kWarpRows / kRowsPerPass; ++pass) load_rows(pass, false);
  }
}

// Brings the rel rows of an item to shared memory: [row][rel_steps * 16], zeros past d_rel and for rows that do not exist.
template <class T, int kThreads>
__device__ __forceinline__ void load_rel_rows(const AttentionParams& p, const RowInfo* s_rows, int n_rows, T* s_rel) {
  const int row_elems = p.bias.rel_steps * 16;
  const T* rel = static_cast<const T*>(p.bias.rel.data);
  if (p.bias.rel.aligned && p.bias.d_rel % kChunkElems == 0) {
    const int n_chunks = row_elems / kChunkElems;
    for (int i = static_cast<int>(threadIdx.x); i < n_rows * n_chunks; i += kThreads) {
      const int row = i / n_chunks, chunk = i - row * n_chunks, token = s_rows[row].token;
      const bool valid = token >= 0 && chunk * kChunkElems < p.bias.d_rel;
      const std::int64_t offset =
          token * p.bias.rel.token_stride + s_rows[row].head * p.bias.rel.head_stride + chunk * kChunkElems;
      cp_async_16(smem_address(s_rel + row * row_elems + chunk * kChunkElems), rel + (valid ? offset : 0), valid);
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * row_elems; i += kThreads) {
    const int row = i / row_elems, e = i - row * row_elems, token = s_rows[row].token;
    const bool valid = token >= 0 && e < p.bias.d_rel;
    const std::int64_t offset = token * p.bias.rel.token_stride + s_rows[row].head * p.bias.rel.head_stride + e;
    s_rel[i] = valid ? rel[offset] : T(0.0f);
  }
}

}  // namespace flashrel::gpu
