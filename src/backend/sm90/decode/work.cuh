// The items of one CTA, read by a whole warp: lane i holds word i of an item, so that the next item can be on its way in one
// register while this one is worked on.
#pragma once

#include "backend/sm90/decode/kernel_params.hpp"
#include "index/ranges.hpp"

namespace flashrel::sm90::decode {

// SYNC: the kernel may start before the one before it has ended (launch.cu). Until this returns nothing may be written, and
// nothing read but what KernelParams::starts_early allows.
__device__ __forceinline__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Lets the kernel behind this one start. Only after the wait: what starts two kernels later can then rely on this one's end.
__device__ __forceinline__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

class ItemReader {
 public:
  __device__ __forceinline__ explicit ItemReader(const KernelParams& params) : p_(params), lane_(threadIdx.x % 32) {
    if (p_.shares != nullptr) {
      const auto* words = reinterpret_cast<const int*>(&p_.shares[blockIdx.x]);
      const int word = lane_ < kWords + 2 ? __ldcg(words + lane_) : 0;
      index_ = __shfl_sync(~0u, word, 0);
      end_ = __shfl_sync(~0u, word, 1);
      words_ = __shfl_down_sync(~0u, word, 2);
    } else {
      const auto n = static_cast<long long>(p_.work.header->n_items);
      index_ = static_cast<int>(blockIdx.x * n / gridDim.x);
      end_ = static_cast<int>((blockIdx.x + 1) * n / gridDim.x);
      words_ = read_lengths(read_item(index_));
    }
    next_words_ = read_item(index_ + 1);
  }

  __device__ __forceinline__ bool done() const { return index_ >= end_; }
  // One item on. The lengths of the item after this one are asked for here, one item before they are needed.
  __device__ __forceinline__ void advance() {
    ++index_;
    words_ = next_words_;
    next_words_ = read_item(index_ + 1);
  }
  // Call once an item, as late as possible: completes the next item's words.
  __device__ __forceinline__ void prepare_next() { next_words_ = read_lengths(next_words_); }

  // Of the next item, which may not exist: its words are those of item 0 of sequence 0 then.
  __device__ __forceinline__ int next_seq() const { return __shfl_sync(~0u, next_words_, 0); }
  __device__ __forceinline__ int next_tile() const { return __shfl_sync(~0u, next_words_, 3); }

  __device__ __forceinline__ int seq() const { return word(0); }
  __device__ __forceinline__ int kv_head() const { return word(1); }
  __device__ __forceinline__ Range tiles() const { return {word(3), word(4)}; }
  __device__ __forceinline__ int slot() const { return word(5); }
  __device__ __forceinline__ int n_parts() const { return word(6); }
  __device__ __forceinline__ int part() const { return word(7); }
  __device__ __forceinline__ int n_rows() const { return word(8); }
  __device__ __forceinline__ Lengths lengths() const { return {word(10), word(9)}; }
  __device__ __forceinline__ int first_token() const { return word(11); }

 private:
  // Order of words: those of WorkItem, then kv_len, q_len, first token (as in gpu::Share).
  static constexpr int kItemWords = 9, kWords = 12;
  static_assert(sizeof(WorkItem) == kItemWords * 4);

  __device__ __forceinline__ int word(int i) const { return __shfl_sync(~0u, words_, i); }
  __device__ __forceinline__ int read_item(int index) const {
    const bool reads = index < end_ && lane_ < kItemWords;
    return reads ? __ldcg(reinterpret_cast<const int*>(&p_.work.items[index]) + lane_) : 0;
  }
  __device__ __forceinline__ int read_lengths(int words) const {
    const int seq = __shfl_sync(~0u, words, 0);
    const std::int32_t* cu_q = p_.batch.cu_q + seq * p_.batch.cu_q_stride;
    if (lane_ == 9) return p_.batch.kv_lens[seq * p_.batch.kv_lens_stride];
    if (lane_ == 10) return cu_q[p_.batch.cu_q_stride] - cu_q[0];
    if (lane_ == 11) return cu_q[0];
    return words;
  }

  const KernelParams& p_;
  const int lane_;
  int index_ = 0, end_ = 0;
  int words_ = 0, next_words_ = 0;
};

}  // namespace flashrel::sm90::decode
