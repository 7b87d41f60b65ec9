// The names of vLLM's Inkling attention that callers rely on, with its exact results.
#pragma once

#include <cstdint>

namespace flashrel {

// Smallest power of two >= n; 1 for n <= 1.
std::int64_t bucket_max_seqlen_q(std::int64_t n);

// True for compute capability majors 10 and 11 only.
bool use_sheared_bias(int capability_major);

struct SeedSplitQuery {
  bool is_local = false;
  std::int64_t batch_size = 1, max_query_len = 1, num_heads = 1, num_kv_heads = 1, max_kv_len = 1;
  int capability_major = 0;
};
std::int64_t inkling_fa4_num_splits(const SeedSplitQuery& query);

}  // namespace flashrel
