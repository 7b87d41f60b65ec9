#include <cmath>
#include <cstdint>
#include <cstdio>
#include <flashrel/flashrel.hpp>
#include <vector>

int main() {
  constexpr int kHeads = 2, kDim = 8, kKeys = 4;
  std::vector<float> q(kHeads * kDim), k(kKeys * kDim), v(kKeys * kDim), out(kHeads * kDim), rel_logits(kHeads * 3);
  for (int i = 0; i < kKeys * kDim; ++i) v[i] = static_cast<float>(i / kDim);  // key j holds j
  rel_logits[2] = rel_logits[5] = 50.0f;                                       // of both heads, at distance 2
  const std::vector<std::int32_t> block_table{0}, cache_seqlens{kKeys}, cu_seqlens_q{0, 1};

  flashrel::Attention call;
  call.q = flashrel::tensor(q.data(), FLASHREL_FLOAT32, {1, kHeads, kDim});
  call.k_cache = flashrel::tensor(k.data(), FLASHREL_FLOAT32, {1, kKeys, 1, kDim});  // one page of four keys
  call.v_cache = flashrel::tensor(v.data(), FLASHREL_FLOAT32, {1, kKeys, 1, kDim});
  call.block_table = flashrel::tensor(block_table.data(), FLASHREL_INT32, {1, 1});
  call.cache_seqlens = flashrel::tensor(cache_seqlens.data(), FLASHREL_INT32, {1});
  call.cu_seqlens_q = flashrel::tensor(cu_seqlens_q.data(), FLASHREL_INT32, {2});
  call.rel_logits = flashrel::tensor(rel_logits.data(), FLASHREL_FLOAT32, {1, kHeads, 3});
  call.out = flashrel::tensor(out.data(), FLASHREL_FLOAT32, {1, kHeads, kDim});
  call.softmax_scale = 1.0 / kDim;

  flashrel::HostWorkspace workspace;
  if (const flashrel::Result result = call.run(workspace); !result) {
    std::printf("%s\n", result.message().c_str());
    return 1;
  }
  for (const float x : out)
    if (std::fabs(x - 1.0f) > 1e-6f) return std::printf("got %g, expected 1\n", x), 1;

  call.softmax_scale = NAN;
  const flashrel::Result refused = call.run(workspace);
  std::printf("flashrel %s: fine; a bad scale says: %s\n", flashrel_version(), refused.message().c_str());
  return refused.code() == FLASHREL_INVALID_ARGUMENT && flashrel::info().front() == '{' ? 0 : 1;
}
