// Where the keys of a work item live. A key's row is found in two steps, so that the page number can be fetched one tile
// ahead of its use: key_page reads the block table, row_offset turns page and slot into an element offset.
// A key outside the range that some row sees, an entry past the table and a wild page number all give kNoRow: zeros.
#pragma once

#include <cstdint>

#include "gpu/params.hpp"
#include "gpu/rows.cuh"
#include "index/distance.hpp"
#include "index/pages.hpp"

namespace flashrel::gpu {

inline constexpr std::int64_t kNoRow = INT64_MIN;
inline constexpr int kNoPage = -1;

__device__ __forceinline__ int key_page(const BatchParams& batch, const Item& item, int key) {
  if (!item.keys.contains(key)) return kNoPage;
  const int entry = batch.page_size.quotient(key);
  return entry < batch.max_pages ? __ldg(item.table + entry * batch.table_page_stride) : kNoPage;
}

__device__ __forceinline__ std::int64_t row_offset(const BatchParams& batch, const PagedTensor& tensor, int page, int key,
                                                   int kv_head) {
  if (!page_in_cache(page, batch.n_pages)) return kNoRow;
  return page * tensor.page_stride + batch.page_size.remainder(key) * tensor.slot_stride + kv_head * tensor.head_stride;
}

}  // namespace flashrel::gpu
