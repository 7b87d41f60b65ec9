#include "backend/mma/policy.hpp"

#include <gtest/gtest.h>

#include "backend/mma/shapes.hpp"

namespace flashrel::mma {
namespace {

Problem layer() {
  Problem p;
  p.memory = MemoryKind::kCuda;
  p.n_tokens = 8192;
  p.n_seqs = 1;
  p.n_q_heads = 64;
  p.n_kv_heads = 8;
  p.head_dim = 128;
  p.page_size = 16;
  p.max_seqlen_q = p.max_seqlen_k = 8192;
  return p;
}

Device gpu(int major, int minor) {
  Device d;
  d.memory = MemoryKind::kCuda;
  d.capability_major = major;
  d.capability_minor = minor;
  d.n_sms = 132;
  return d;
}

TEST(MmaSupports, EveryGpuFromAmpereUp) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {11, 0}, {12, 0}, {12, 1}})
    EXPECT_EQ(supports(layer(), gpu(major, minor), {}), "");
  EXPECT_EQ(supports(layer(), gpu(7, 5), {}), "device: got compute capability 7.5, mma needs 8.0 or newer");
}

TEST(MmaSupports, RefusalsNameTheArgument) {
  Problem p = layer();
  p.dtype = DType::kFloat32;
  EXPECT_EQ(supports(p, gpu(9, 0), {}), "dtype: got float32, mma needs bfloat16 or float16");
  p = layer();
  p.head_dim = 80;
  EXPECT_EQ(supports(p, gpu(9, 0), {}), "head_dim: got 80, mma has 32, 64, 96, 128, 192 and 256");
  p = layer();
  p.bias = BiasMode::kFused;
  p.d_rel = 65;
  EXPECT_EQ(supports(p, gpu(9, 0), {}), "d_rel: got 65, mma serves at most 64");
  p = layer();
  p.bias = BiasMode::kLogits;
  p.rel_zero = std::int64_t{1} << 40;
  EXPECT_EQ(supports(p, gpu(9, 0), {}), "rel_zero: got 1099511627776, mma serves magnitudes below 2^30");
}

TEST(MmaSupports, EveryHeadDimAndPage) {
  for (const int head_dim : {32, 64, 96, 128, 192, 256})
    for (const int page : {1, 13, 16, 256})
      for (const int q_len : {1, 9, 8192}) {
        Problem p = layer();
        p.head_dim = head_dim;
        p.page_size = page;
        p.max_seqlen_q = q_len;
        ASSERT_EQ(supports(p, gpu(8, 0), {}), "");
        ASSERT_GE(padded_head_dim(p), head_dim);
      }
}

TEST(MmaPolicy, FewRowsGoToTheKeysKernel) {
  Problem p = layer();
  p.max_seqlen_q = 4;  // 4 tokens x 8 heads of a KV head: two tiles
  EXPECT_EQ(choose_policy(p, gpu(9, 0), {}).name, "keys_16x64");
  p.max_seqlen_q = 5;
  EXPECT_EQ(choose_policy(p, gpu(9, 0), {}).name, "rows_128x64");
  p.max_seqlen_q = p.n_tokens = 1;
  p.head_dim = 256;
  EXPECT_EQ(choose_policy(p, gpu(9, 0), {}).name, "rows_64x32");
}

TEST(MmaPolicy, MixedBatchesLaunchBothKernels) {
  Problem p = layer();
  EXPECT_EQ(choose_kernels(p, false), (Kernels{.keys = false, .rows = true}));
  p.n_seqs = 3;  // 8,192 tokens, not all of one sequence
  EXPECT_EQ(choose_kernels(p, false), (Kernels{.keys = true, .rows = true}));
  p.max_seqlen_q = 2;  // 2 tokens x 8 heads of a KV head
  EXPECT_EQ(choose_kernels(p, false), (Kernels{.keys = true, .rows = false}));
  p.head_dim = 256;
  EXPECT_EQ(choose_kernels(p, false), (Kernels{.keys = false, .rows = true}));
}

// The bound of q_len belongs to the batch: with `deterministic` it must choose neither the kernel nor the tiles of a sequence.
TEST(MmaPolicy, DeterministicTilesDoNotDependOnTheBatch) {
  Options options;
  options.deterministic = true;
  Problem p = layer();
  const Policy prefill = choose_policy(p, gpu(9, 0), options);
  p.max_seqlen_q = 1;
  const Policy decode = choose_policy(p, gpu(9, 0), options);
  EXPECT_EQ(decode.tile_rows, prefill.tile_rows);
  EXPECT_EQ(decode.tile_keys, prefill.tile_keys);
  EXPECT_EQ(decode.fixed_tiles_per_part, prefill.fixed_tiles_per_part);
  EXPECT_EQ(choose_kernels(p, true), (Kernels{.keys = true, .rows = false}));
  p.max_seqlen_q = 8192;
  EXPECT_EQ(choose_kernels(p, true), (Kernels{.keys = true, .rows = true}));
}

TEST(MmaPolicy, TilesAreThoseOfTheKernel) {
  for (const int head_dim : {64, 128, 256})
    for (const int q_len : {1, 100}) {
      Problem p = layer();
      p.head_dim = head_dim;
      p.max_seqlen_q = q_len;
      const Policy policy = choose_policy(p, gpu(9, 0), {});
      if (!choose_kernels(p, false).rows) {
        EXPECT_EQ(policy.tile_rows, KeysShape<128>::kTileRows);
        EXPECT_EQ(policy.tile_keys, KeysShape<128>::kTileKeys);
      } else if (head_dim == 256) {
        EXPECT_EQ(policy.tile_rows, RowsShape<256>::kTileRows);
        EXPECT_EQ(policy.tile_keys, RowsShape<256>::kTileKeys);
      } else {
        EXPECT_EQ(policy.tile_rows, RowsShape<64>::kTileRows);
        EXPECT_EQ(policy.tile_keys, RowsShape<64>::kTileKeys);
        EXPECT_EQ(policy.tile_rows, RowsShape<128>::kTileRows);
        EXPECT_EQ(policy.tile_keys, RowsShape<128>::kTileKeys);
      }
      EXPECT_GT(policy.n_workers, 0);
      EXPECT_GT(policy.target_parts, 0);
    }
}

// The smallest limit of a supported GPU is 99 KiB a block (compute capability 8.6, 8.9, 12.0).
TEST(MmaShapes, SharedMemoryFitsEveryGpu) {
  constexpr std::size_t kSmallest = 99 * 1024, kStatic = 1024;  // static variables of the keys kernel stay below 1 KiB
  const auto largest = [](auto shape) {
    using Shape = decltype(shape);
    std::size_t extra = 0;
    for (int d_rel = 1; d_rel <= kMaxRelDim; ++d_rel)
      extra = std::max(extra, extra_bytes<Shape>(Route::kFused, d_rel, DType::kBFloat16));
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32})
      extra = std::max(extra, extra_bytes<Shape>(Route::kSheared, 0, dtype));
    return Shape::kExtraAt + extra;
  };
  EXPECT_LE(largest(RowsShape<64>{}), kSmallest);
  EXPECT_LE(largest(RowsShape<128>{}), kSmallest);
  EXPECT_LE(largest(RowsShape<256>{}), kSmallest);
  EXPECT_LE(largest(KeysShape<128>{}) + kStatic, kSmallest);
  // CTAs that share the 228 KiB of an H100's SM, 1 KiB each reserved.
  constexpr std::size_t kOwn = 1024 + 256, kHopper = 228 * 1024;
  const auto typical = [](auto shape) {
    using Shape = decltype(shape);
    return Shape::kExtraAt + extra_bytes<Shape>(Route::kFused, 16, DType::kBFloat16) + kOwn;
  };
  EXPECT_LE(2 * typical(RowsShape<128>{}), kHopper);
  EXPECT_LE(3 * typical(KeysShape<128>{}), kHopper);
}

TEST(MmaPolicy, RoutesFollowTheBias) {
  Problem p = layer();
  EXPECT_EQ(choose_policy(p, gpu(9, 0), {}).route, Route::kNone);
  p.bias = BiasMode::kFused;
  EXPECT_EQ(choose_policy(p, gpu(9, 0), {}).route, Route::kFused);
  p.bias = BiasMode::kLogits;
  Options options;
  options.route = "score_mod";
  EXPECT_EQ(choose_policy(p, gpu(9, 0), options).route, Route::kScoreMod);
  options.route = "sheared";
  EXPECT_EQ(choose_policy(p, gpu(9, 0), options).route, Route::kSheared);
}

}  // namespace
}  // namespace flashrel::mma
