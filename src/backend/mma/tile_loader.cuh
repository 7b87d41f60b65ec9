// How kernel_rows.cuh brings tiles of K and V to shared memory.
#pragma once

#include <cstdint>

#include "gpu/cp_async.cuh"
#include "gpu/page_loader.cuh"
#include "gpu/rows.cuh"
#include "index/swizzle.hpp"

namespace flashrel::mma {

using namespace flashrel::gpu;

// Brings key tiles to shared memory. The addresses of key rows are worked out for a chunk of tiles at once, because what a
// thread does alone for one key is all waiting: chunks are aligned, and looked up when the first (highest) tile of one comes.
template <class T, class Shape>
struct TileLoader {
  static constexpr int kChunks = Shape::kHeadDim / kChunkElems, kRowsPerPass = Shape::kThreads / kChunks;
  static constexpr int kPasses = Shape::kTileKeys / kRowsPerPass;       // of all threads over the rows of a tile
  static constexpr int kLookups = Shape::kChunkKeys / Shape::kThreads;  // keys of a chunk that a thread looks up
  static_assert(Shape::kChunkKeys % Shape::kThreads == 0);

  const AttentionParams& p;
  const char* (*s_places)[Shape::kChunkKeys];  // [K, V][key % kChunkKeys]

  // Whether the tile after `tile` belongs to another chunk.
  __device__ __forceinline__ static bool ends_chunk(int tile) { return (tile & (Shape::kChunkTiles - 1)) == 0; }

  __device__ __forceinline__ static int key_of(int tile, int i) {
    return tile / Shape::kChunkTiles * Shape::kChunkKeys + i * Shape::kThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ void fetch_pages(const Item& item, int tile, int (&pages)[kLookups]) const {
#pragma unroll
    for (int i = 0; i < kLookups; ++i) pages[i] = key_page(p.batch, item, key_of(tile, i));
  }
  __device__ __forceinline__ void publish_places(const Item& item, int tile, const int (&pages)[kLookups]) const {
#pragma unroll
    for (int i = 0; i < kLookups; ++i) {
      const int at = i * Shape::kThreads + static_cast<int>(threadIdx.x);
      s_places[0][at] = key_row(p.batch, p.k, item.k_head, pages[i], key_of(tile, i));
      s_places[1][at] = key_row(p.batch, p.v, item.v_head, pages[i], key_of(tile, i));
    }
  }

  // This thread's part of a tile: one chunk of a row in every pass.
  struct Part {
    const char* const* places;
    std::uint32_t smem;
    int row, chunk;
    bool exists, aligned;
  };
  __device__ __forceinline__ Part part_of(int tile, bool is_v, std::uint32_t s_tile) const {
    const int thread = static_cast<int>(opaque(threadIdx.x)), chunk = thread % kChunks, row = thread / kChunks;
    return {s_places[is_v] + (tile & (Shape::kChunkTiles - 1)) * Shape::kTileKeys + row,
            s_tile,
            row,
            chunk,
            chunk * kChunkElems < p.head_dim,
            is_v ? p.v.aligned : p.k.aligned};
  }
  __device__ __forceinline__ static const char* source(const Part& part, int pass) {
    return part.places[pass * kRowsPerPass] + part.chunk * kChunkBytes;
  }
  __device__ __forceinline__ static void copy_pass(const Part& part, int pass, const char* source) {
    cp_async_16_if(part.aligned, part.smem + tile_offset_bytes(part.row + pass * kRowsPerPass, part.chunk, Shape::kHeadDim),
                   source, part.exists);
  }
  // The whole tile where rows are not aligned; nothing where they are.
  __device__ __forceinline__ void copy_unaligned(const Part& part) const {
    if (part.aligned) return;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass)
      load_chunk(part.smem + tile_offset_bytes(part.row + pass * kRowsPerPass, part.chunk, Shape::kHeadDim),
                 reinterpret_cast<const T*>(source(part, pass)), part.exists, false);
  }
  __device__ __forceinline__ void copy(int tile, bool is_v, std::uint32_t s_tile) const {
    const Part part = part_of(tile, is_v, s_tile);
    copy_unaligned(part);
    constexpr int kAtOnce = 4;  // addresses that are read before any is used
    static_assert(kPasses % kAtOnce == 0);
#pragma unroll
    for (int pass = 0; pass < kPasses; pass += kAtOnce) {
      const char* sources[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sources[i] = source(part, pass + i);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) copy_pass(part, pass + i, sources[i]);
    }
  }
};

}  // namespace flashrel::mma
