#include "kv_cache.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

namespace inkling {

BlockAllocator::BlockAllocator(int n_pages) : n_pages_(n_pages), is_free_(static_cast<std::size_t>(n_pages), true) {
  for (int page = 0; page < n_pages; ++page) free_.push_back(page);  // ascending: a heap for std::greater
}

int BlockAllocator::take() {
  if (free_.empty()) throw std::logic_error("no free page");
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int page = free_.back();
  free_.pop_back();
  is_free_[page] = false;
  return page;
}

void BlockAllocator::give(int page) {
  if (page < 0 || page >= n_pages_ || is_free_[page]) throw std::logic_error("page " + std::to_string(page) + " is not taken");
  is_free_[page] = true;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

bool BlockAllocator::promise(int n) {
  if (n_promised_ + n > n_pages_) return false;
  n_promised_ += n;
  return true;
}

KvCache::KvCache(const Config& config, const CacheOptions& options)
    : config_(config), options_(options), allocators_{BlockAllocator(options.n_pages[0]), BlockAllocator(options.n_pages[1])} {
  int count[2] = {0, 0};
  for (const LayerConfig& layer : config.layers) index_in_kind_.push_back(count[layer.is_local]++);
  for (const bool local : {false, true}) {
    const std::size_t elems = static_cast<std::size_t>(config.n_layers(local)) * 2 * options.n_pages[local] *
                              options.page_size * config.n_kv_heads(local) * config.head_dim;
    data_[local].resize(elems * flashrel::size_of(options.dtype));
  }
}

int KvCache::pages_needed(bool local, std::int64_t max_length) const {
  if (config_.n_layers(local) == 0) return 0;
  const std::int64_t page = options_.page_size;
  const std::int64_t all = (max_length + page - 1) / page;
  if (!local) return static_cast<int>(all);
  // the window of the oldest new token, the new tokens themselves, and one page more for a start inside a page
  const std::int64_t seen = config_.window() - 1 + options_.max_new_tokens;
  return static_cast<int>(std::min(all, (seen + page - 1) / page + 1));
}

bool KvCache::can_ever_admit(std::int64_t max_length) const {
  return pages_needed(false, max_length) <= options_.n_pages[0] && pages_needed(true, max_length) <= options_.n_pages[1];
}

bool KvCache::admit(Sequence& sequence, std::int64_t max_length) {
  const int needed[2] = {pages_needed(false, max_length), pages_needed(true, max_length)};
  if (!allocators_[0].promise(needed[0])) return false;
  if (!allocators_[1].promise(needed[1])) {
    allocators_[0].end_promise(needed[0]);
    return false;
  }
  std::copy(needed, needed + 2, sequence.promised);
  return true;
}

void KvCache::extend(Sequence& sequence, std::int64_t n_new) {
  const std::int64_t page = options_.page_size;
  std::vector<std::int32_t>& table = sequence.pages[1];
  const std::int64_t first_seen = table.empty() ? 0 : std::max<std::int64_t>(0, sequence.length - config_.window() + 1);
  for (std::int64_t p = first_seen / page - 1; p >= 0 && table[p] != kNoPage; --p) {
    allocators_[1].give(table[p]);
    table[p] = kNoPage;
  }
  for (const bool local : {false, true})
    while (config_.n_layers(local) > 0 &&
           static_cast<std::int64_t>(sequence.pages[local].size()) * page < sequence.length + n_new)
      sequence.pages[local].push_back(allocators_[local].take());
}

void KvCache::release(Sequence& sequence) {
  for (const bool local : {false, true}) {
    for (const std::int32_t page : sequence.pages[local])
      if (page != kNoPage) allocators_[local].give(page);
    sequence.pages[local].clear();
    allocators_[local].end_promise(sequence.promised[local]);
    sequence.promised[local] = 0;
  }
  sequence.length = 0;
}

flashrel_tensor KvCache::view(int layer, int k_or_v) const {
  const LayerConfig& kind = config_.layers[layer];
  const std::int64_t n_pages = options_.n_pages[kind.is_local];
  const std::int64_t elems = n_pages * options_.page_size * kind.n_kv_heads * config_.head_dim;
  const std::byte* data =
      data_[kind.is_local].data() + (2 * index_in_kind_[layer] + k_or_v) * elems * flashrel::size_of(options_.dtype);
  return flashrel::tensor(data, static_cast<flashrel_dtype>(options_.dtype),
                          {n_pages, options_.page_size, kind.n_kv_heads, config_.head_dim});
}

void KvCache::store(int layer, const Sequence& sequence, std::int64_t position, const float* key, const float* value) {
  const bool local = config_.layers[layer].is_local;
  const std::int64_t page = sequence.pages[local][position / options_.page_size], slot = position % options_.page_size;
  const float* sources[2] = {key, value};
  for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
    const flashrel_tensor cache = view(layer, k_or_v);
    auto* to = static_cast<std::byte*>(cache.data) +
               (page * cache.stride[0] + slot * cache.stride[1]) * static_cast<std::int64_t>(flashrel::size_of(options_.dtype));
    convert(sources[k_or_v], cache.shape[2] * cache.shape[3], options_.dtype, to);
  }
}

void convert(const float* from, std::int64_t n, flashrel::DType dtype, void* to) {
  if (dtype == flashrel::DType::kFloat32) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    for (std::int64_t i = 0; i < n; ++i) flashrel::store_float(to, dtype, i, from[i]);
  }
}

}  // namespace inkling
