#include "api/seed.hpp"

#include <algorithm>

#include "base/int_math.hpp"

namespace flashrel {
namespace {

constexpr std::int64_t kSeedTileRows = 256;  // packed query rows of one CTA in the seed's kernel
constexpr std::int64_t kSeedTileKeys = 128;  // a split has at least this many keys

// Cap on splits of a single decode sequence: more KV heads or fewer keys need fewer splits.
std::int64_t single_sequence_cap(std::int64_t num_kv_heads, std::int64_t max_kv_len) {
  if (num_kv_heads == 8) return 16;
  if (num_kv_heads == 4 || max_kv_len <= 8192) return 32;
  return max_kv_len <= 65536 ? 64 : 128;
}

}  // namespace

std::int64_t bucket_max_seqlen_q(std::int64_t n) {
  std::int64_t bucket = 1;
  while (bucket < n && bucket < (std::int64_t{1} << 62)) bucket *= 2;
  return bucket;
}

bool use_sheared_bias(int capability_major) { return capability_major == 10 || capability_major == 11; }

std::int64_t inkling_fa4_num_splits(const SeedSplitQuery& query) {
  if (query.capability_major == 9 || query.is_local) return 1;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, query.num_kv_heads);
  const std::int64_t rows = query.max_query_len * (query.num_heads / kv_heads);
  const std::int64_t row_tiles = ceil_div(rows, kSeedTileRows);
  const std::int64_t ctas = std::max<std::int64_t>(1, query.batch_size * kv_heads * row_tiles);
  const bool decode = row_tiles == 1, single = decode && query.batch_size == 1;
  const std::int64_t wanted_ctas = single ? 256 : decode ? 128 : 64;
  const std::int64_t cap = single ? single_sequence_cap(kv_heads, query.max_kv_len) : 128;
  return std::max<std::int64_t>(1, std::min({wanted_ctas / ctas, cap, ceil_div(query.max_kv_len, kSeedTileKeys)}));
}

}  // namespace flashrel
