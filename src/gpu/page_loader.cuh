// Where the keys of a work item live. A key's row is found in two steps, so that the page number can be fetched one tile
// ahead of its use: key_page reads the block table, row_place turns page and slot into a place.
// A key outside the range that some row sees, an entry past the table and a wild page number all give kNoRow: zeros.
#pragma once

#include <cstdint>

#include "gpu/params.hpp"
#include "gpu/rows.cuh"
#include "index/distance.hpp"
#include "index/pages.hpp"

namespace flashrel::gpu {

// A place is the row's byte offset in K or V with bit 0 set (elements have two bytes), or kNoRow.
inline constexpr std::int64_t kNoRow = 0;
inline constexpr int kNoPage = -1;

__device__ __forceinline__ int key_page(const BatchParams& batch, const Item& item, int key) {
  if (!item.keys.contains(key)) return kNoPage;
  const int entry = batch.page_size.quotient(key);
  return entry < batch.max_pages ? __ldg(item.table + entry * batch.table_page_stride) : kNoPage;
}

__device__ __forceinline__ std::int64_t row_place(const BatchParams& batch, const PagedTensor& tensor, int page, int key,
                                                  int kv_head) {
  if (!page_in_cache(page, batch.n_pages)) return kNoRow;
  const std::int64_t elems =
      page * tensor.page_stride + batch.page_size.remainder(key) * tensor.slot_stride + kv_head * tensor.head_stride;
  return elems * 2 + 1;
}

// Copies one chunk of a row to shared memory; `column` points at the chunk in the row at offset 0. See load_chunk.
__device__ __forceinline__ void load_key_chunk(std::uint32_t smem, const char* column, std::int64_t place, bool chunk_exists,
                                               bool aligned) {
  const bool valid = chunk_exists && (place & 1) != 0;
  load_chunk(smem, reinterpret_cast<const std::uint16_t*>(column + (place & ~std::int64_t{1})), valid, aligned);
}

}  // namespace flashrel::gpu
