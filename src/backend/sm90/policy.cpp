#include "backend/sm90/policy.hpp"

#include "backend/sm90/prefill/tiles.hpp"
#include "index/schedule.hpp"

namespace flashrel::sm90 {
namespace {

constexpr int kMinTilesPerPart = 8;

// How many parts to aim at; 0 = cut nothing. A CTA holds an SM alone, so whole waves of items are what counts.
int choose_target_parts(const Problem& problem, int n_sms) {
  ScheduleShape shape;
  shape.n_seqs = problem.n_seqs;
  shape.n_kv_heads = problem.n_kv_heads;
  shape.group = problem.group();
  shape.tile_rows = prefill::kTileRows;
  const std::int64_t units = max_units(shape, problem.n_tokens, problem.max_seqlen_q);
  // Slightly fewer parts than slots: units of equal length that nearly fill a wave stay whole.
  const auto waves = [n_sms](int n) { return max_of(1, n * n_sms * 9 / 10); };
  if (units < n_sms) return waves(1);
  // Rows of much context cost all the same, so a second wave that is mostly empty doubles the time. Causal triangles do not
  // have this: their short units come last and fill the gaps.
  const bool even_cost = problem.max_seqlen_k >= 2 * problem.max_seqlen_q;
  if (units > n_sms && units < 2 * n_sms && even_cost) return waves(2);
  return 0;
}

}  // namespace

Policy choose_policy(const Problem& problem, const Device& device, const Options&) {
  Policy policy;
  policy.name = "prefill_128x128";
  policy.tile_rows = prefill::kTileRows;
  policy.tile_keys = prefill::kTileKeys;
  policy.n_workers = max_of(1, device.n_sms);
  policy.target_parts = choose_target_parts(problem, policy.n_workers);
  policy.min_tiles_per_part = kMinTilesPerPart;
  policy.fixed_tiles_per_part = 32;
  policy.route = problem.bias == BiasMode::kFused ? Route::kFused : Route::kNone;
  policy.stages = prefill::kStages;
  policy.cost = {9, 0.9, 0.7};
  return policy;
}

}  // namespace flashrel::sm90
