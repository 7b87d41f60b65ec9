// Where the keys of a work item live. A key's row is found in two steps, so that the page number can be fetched before it is
// needed: key_page reads the block table, key_row turns page and slot into an address.
// A key outside the range that some row sees, an entry past the table and a wild page number all give a row of zeros, so that
// the copies need no checks.
#pragma once

#include <cstdint>

#include "gpu/params.hpp"
#include "gpu/rows.cuh"
#include "index/distance.hpp"
#include "index/pages.hpp"

namespace flashrel::gpu {

inline constexpr int kNoPage = -1;

// The longest row has 256 elements of two bytes.
static __device__ const uint4 kZeroRow[32] = {};

__device__ __forceinline__ int key_page(const BatchParams& batch, const Item& item, int key) {
  const int entry = batch.page_size.quotient(key);
  const bool exists = item.keys.contains(key) && entry < batch.max_pages;
  return exists ? __ldg(item.table + entry * batch.table_page_stride) : kNoPage;
}

// `head` is the tensor's first row of the item's KV head.
__device__ __forceinline__ const char* key_row(const BatchParams& batch, const PagedTensor& tensor, const char* head, int page,
                                               int key) {
  const std::int64_t offset = page * tensor.page_stride + batch.page_size.remainder(key) * tensor.slot_stride;
  return page_in_cache(page, batch.n_pages) ? head + offset * 2 : reinterpret_cast<const char*>(kZeroRow);
}

// Copies one chunk of a row to shared memory; see load_chunk.
__device__ __forceinline__ void load_key_chunk(std::uint32_t smem, const char* chunk, bool chunk_exists, bool aligned) {
  load_chunk(smem, reinterpret_cast<const std::uint16_t*>(chunk), chunk_exists, aligned);
}

}  // namespace flashrel::gpu
