// Paged KV caches. Layers of one kind (local, global) share one pool of pages and one table a sequence: page p of the pool is
// page p of every such layer's K and V. Local pools are small: pages behind the window go back as the sequence grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.hpp"
#include "flashrel/flashrel.hpp"
#include "weights.hpp"

namespace inkling {

// Hands out the page numbers [0, n_pages), lowest first; `promised` pages are kept for sequences already admitted.
class BlockAllocator {
 public:
  explicit BlockAllocator(int n_pages);

  int n_pages() const { return n_pages_; }
  int n_free() const { return static_cast<int>(free_.size()); }
  int take();           // throws std::logic_error when there is none: promises are made so that this cannot happen
  void give(int page);  // throws std::logic_error for a page that is free already

  // Promises `n` pages to one sequence; false when they are not there.
  bool promise(int n);
  void end_promise(int n) { n_promised_ -= n; }

 private:
  int n_pages_, n_promised_ = 0;
  std::vector<int> free_;  // a heap, the lowest number on top
  std::vector<bool> is_free_;
};

inline constexpr std::int32_t kNoPage = -1;  // table entry of a page that was given back; never read by FlashRel

// What one sequence holds: its length, a table for each kind, and the last inputs of its short convolutions.
struct Sequence {
  std::int64_t length = 0;             // tokens in the cache
  std::vector<std::int32_t> pages[2];  // [is_local]
  int promised[2] = {0, 0};
  std::vector<float> conv_inputs;  // Model's: (layer, conv, n_taps - 1, channel), oldest first
};

struct CacheOptions {
  flashrel::DType dtype = flashrel::DType::kBFloat16;
  int page_size = 64;
  int n_pages[2] = {0, 0};  // [is_local]
  int max_new_tokens = 0;   // most tokens that one call appends to a sequence
};

class KvCache {
 public:
  KvCache(const Config& config, const CacheOptions& options);

  // Pages for a sequence of up to max_length tokens are promised to it; false when there are not enough.
  bool admit(Sequence& sequence, std::int64_t max_length);
  bool can_ever_admit(std::int64_t max_length) const;
  // Gives back the local pages that no later token sees, and takes pages for `n_new` more tokens.
  void extend(Sequence& sequence, std::int64_t n_new);
  void release(Sequence& sequence);

  const CacheOptions& options() const { return options_; }
  const BlockAllocator& allocator(bool local) const { return allocators_[local]; }
  int n_pages_in_use(bool local) const { return allocators_[local].n_pages() - allocators_[local].n_free(); }

  // Views (n_pages, page_size, n_kv_heads, head_dim) of one layer.
  flashrel_tensor keys(int layer) const { return view(layer, 0); }
  flashrel_tensor values(int layer) const { return view(layer, 1); }
  // Writes K and V (n_kv_heads, head_dim) of one token.
  void store(int layer, const Sequence& sequence, std::int64_t position, const float* key, const float* value);

 private:
  int pages_needed(bool local, std::int64_t max_length) const;
  flashrel_tensor view(int layer, int k_or_v) const;

  const Config& config_;
  CacheOptions options_;
  BlockAllocator allocators_[2];    // [is_local]
  std::vector<int> index_in_kind_;  // of a layer
  // LAYOUT: [is_local][layer of the kind][K, V][page][slot][n_kv_heads][head_dim] of dtype
  std::vector<std::byte> data_[2];
};

// dtype elements from float32.
void convert(const float* from, std::int64_t n, flashrel::DType dtype, void* to);

}  // namespace inkling
