#include "backend/mma/policy.hpp"

#include "backend/mma/shapes.hpp"
#include "index/schedule.hpp"

namespace flashrel::mma {
namespace {

// Lengths and table offsets travel as int in the kernels.
constexpr std::int64_t kMaxTable = std::int64_t{1} << 30;

Route choose_route(const Problem& problem, const Options& options) {
  if (problem.bias == BiasMode::kNone) return Route::kNone;
  if (problem.bias == BiasMode::kFused) return Route::kFused;
  if (options.route == "score_mod") return Route::kScoreMod;
  if (options.route == "sheared") return Route::kSheared;
  // EVIDENCE (H200, 2026-11-30): few rows, 32 x 8K, 64/8 heads: score_mod 310 us, sheared 360 us. Many rows: see README.md.
  const bool few_rows = !choose_kernels(problem, options.deterministic).rows;
  return few_rows || size_of(problem.rel_logits_dtype) == 4 ? Route::kScoreMod : Route::kSheared;
}

// Parts to aim at. Few units: one wave of workers. Many: several parts a worker, because a unit's length is a multiple of
// nothing and the last wave would leave workers idle.
int choose_target_parts(const Problem& problem, const Policy& policy) {
  ScheduleShape shape;
  shape.n_seqs = problem.n_seqs;
  shape.n_kv_heads = problem.n_kv_heads;
  shape.group = problem.group();
  shape.tile_rows = policy.tile_rows;
  const std::int64_t units = max_units(shape, problem.n_tokens, problem.max_seqlen_q);
  const std::int64_t workers = policy.n_workers;
  return static_cast<int>(clamp_to<std::int64_t>(8 * units, workers, 4 * workers));
}

}  // namespace

int padded_head_dim(const Problem& problem) {
  switch (problem.head_dim) {
    case 32:
    case 64: return 64;
    case 96:
    case 128: return 128;
    case 192:
    case 256: return 256;
    default: return 0;
  }
}

Kernels choose_kernels(const Problem& problem, bool deterministic) {
  if (problem.head_dim > 128) return {.keys = false, .rows = true};
  const std::int64_t most_rows = problem.max_seqlen_q * problem.group();
  // Two tiles of 16 rows read K and V twice, but once from L2: less than a tile of 128 rows costs.
  if (!deterministic && most_rows <= 2 * KeysShape<128>::kTileRows) return {.keys = true, .rows = false};
  const bool all_short = most_rows <= KeysShape<128>::kTileRows;
  const bool all_equal = problem.n_tokens == problem.n_seqs * problem.max_seqlen_q;
  return {.keys = all_short || deterministic || !all_equal, .rows = !all_short};
}

std::string supports(const Problem& p, const Device& device, const Options&) {
  if (device.capability_major < 8)
    return "device: got compute capability " + std::to_string(device.capability_major) + "." +
           std::to_string(device.capability_minor) + ", mma needs 8.0 or newer";
  if (p.dtype != DType::kBFloat16 && p.dtype != DType::kFloat16)
    return std::string("dtype: got ") + name_of(p.dtype) + ", mma needs bfloat16 or float16";
  if (padded_head_dim(p) == 0) return "head_dim: got " + std::to_string(p.head_dim) + ", mma has 32, 64, 96, 128, 192 and 256";
  if (p.bias == BiasMode::kFused && p.d_rel > kMaxRelDim)
    return "d_rel: got " + std::to_string(p.d_rel) + ", mma serves at most " + std::to_string(kMaxRelDim);
  if (p.rel_extent >= kMaxTable) return "rel_extent: got " + std::to_string(p.rel_extent) + ", mma serves less than 2^30";
  if (p.rel_zero >= kMaxTable || p.rel_zero <= -kMaxTable)
    return "rel_zero: got " + std::to_string(p.rel_zero) + ", mma serves magnitudes below 2^30";
  return "";
}

Policy choose_policy(const Problem& problem, const Device& device, const Options& options) {
  Policy policy;
  // With `deterministic` the row tiles, too, must not depend on the batch's bounds.
  if (!options.deterministic && !choose_kernels(problem, false).rows) {
    policy.name = "keys_16x64";
    policy.tile_rows = KeysShape<128>::kTileRows;
    policy.tile_keys = KeysShape<128>::kTileKeys;
    policy.n_workers = KeysShape<128>::kCtasPerSm * device.n_sms;
    policy.min_tiles_per_part = 4;
    policy.fixed_tiles_per_part = 16;
    policy.stages = KeysShape<128>::kSlots / 2;
  } else if (problem.head_dim > 128) {
    policy.name = "rows_64x32";
    policy.tile_rows = RowsShape<256>::kTileRows;
    policy.tile_keys = RowsShape<256>::kTileKeys;
    policy.n_workers = RowsShape<128>::kCtasPerSm * device.n_sms;
    policy.min_tiles_per_part = 16;
    policy.fixed_tiles_per_part = 64;
  } else {
    policy.name = "rows_128x64";
    policy.tile_rows = RowsShape<128>::kTileRows;
    policy.tile_keys = RowsShape<128>::kTileKeys;
    policy.n_workers = RowsShape<128>::kCtasPerSm * device.n_sms;
    policy.min_tiles_per_part = 8;
    policy.fixed_tiles_per_part = 32;
  }
  // EVIDENCE one H200: 32 x 8K and 1 x 64K decode, 8K prefill (README.md).
  policy.cost = {38, 0.92, 0.33};
  policy.n_workers = max_of(1, policy.n_workers);
  policy.target_parts = choose_target_parts(problem, policy);
  policy.route = choose_route(problem, options);
  return policy;
}

}  // namespace flashrel::mma
