#include "backend/sm90/policy.hpp"

#include "backend/sm90/decode/tiles.hpp"
#include "backend/sm90/prefill/tiles.hpp"
#include "gpu/shares.hpp"
#include "index/schedule.hpp"

namespace flashrel::sm90 {
namespace {

constexpr int kMinTilesPerPart = 8;
// About 50 us: more than shares of one batch differ by, little beside a kernel that holds the other SMs.
constexpr int kPatienceClocks = 100000;

// Deterministic decode: 1,024 keys. Shorter parts pay their ends more often, longer ones leave SMs without work.
constexpr int kFixedDecodeTiles = 16;

// Units that prefill may have. In a mixed batch: if all sequences but the chunks are single rows, which decode takes.
std::int64_t likely_units(const Problem& problem, bool mixed) {
  if (mixed)
    return max_of<std::int64_t>(1, (problem.n_tokens - problem.n_seqs) * problem.group() / prefill::kTileRows) *
           problem.n_kv_heads;
  ScheduleShape shape;
  shape.n_seqs = problem.n_seqs;
  shape.n_kv_heads = problem.n_kv_heads;
  shape.group = problem.group();
  shape.tile_rows = prefill::kTileRows;
  return max_units(shape, problem.n_tokens, problem.max_seqlen_q);
}

// How many parts to aim at; 0 = cut nothing. A CTA holds an SM alone, so whole waves of items are what counts.
int choose_target_parts(const Problem& problem, bool mixed, int n_sms) {
  const std::int64_t units = likely_units(problem, mixed);
  // Slightly fewer parts than slots: units of equal length that nearly fill a wave stay whole.
  const auto waves = [n_sms](int n) { return max_of(1, n * n_sms * 9 / 10); };
  if (units < n_sms) return waves(1);
  // Causal triangles are not cut: their short units come last and fill the gaps.
  const bool much_context = problem.max_seqlen_k >= 2 * problem.max_seqlen_q;
  if (!much_context || units == n_sms) return 0;
  // Rows of much context cost all the same, so a second wave that is mostly empty doubles the time. And in a batch one row of
  // a long sequence among many short ones may cost as much as all that a CTA does.
  return units < 2 * n_sms || problem.n_seqs > 1 ? waves(2) : 0;
}

std::string_view decode_name(int rows) {
  switch (rows) {
    case 8: return "decode_64x8";
    case 16: return "decode_64x16";
    case 32: return "decode_64x32";
    case 40: return "decode_64x40";
    case 64: return "decode_64x64";
    default: return "decode_64x72";
  }
}

Policy choose_decode(const Problem& problem, const Device& device) {
  Policy policy;
  policy.tile_rows = decode::instance_rows(problem.max_seqlen_q * problem.group());
  policy.tile_keys = decode::kTileKeys;
  policy.name = decode_name(policy.tile_rows);
  policy.n_workers = clamp_to(device.n_sms, 1, gpu::kMaxShares);
  policy.equal_shares = true;
  policy.fixed_tiles_per_part = kFixedDecodeTiles;
  policy.patience_clocks = kPatienceClocks;
  // In mode logits TMA's boxes do the shear.
  policy.route = problem.bias == BiasMode::kFused    ? Route::kFused
                 : problem.bias == BiasMode::kLogits ? Route::kSheared
                                                     : Route::kNone;
  policy.stages = decode::stages(policy.tile_rows, decode::bias_of(problem.bias, problem.d_rel));
  policy.cost = {7, 0.93, 0.3};  // EVIDENCE README.md, figures of decode: 1 x 64K and 32 x 8K
  return policy;
}

}  // namespace

bool takes_decode(const Problem& problem, const Options& options) {
  const int rows = decode::instance_rows(problem.max_seqlen_q * problem.group());
  if (rows == 0 || is_clamped(problem.band) || problem.head_dim != decode::kHeadDim) return false;
  // Which kernel takes a sequence must not depend on the longest of its neighbours.
  if (options.deterministic && rows > kFewRows) return false;
  const bool broadcast = problem.n_tokens > 1 && problem.strides.rel_logits_token == 0;  // one token has no stride
  if (problem.bias == BiasMode::kLogits &&
      (rows > decode::kMaxLogitsRows || problem.rel_logits_dtype != problem.dtype || broadcast))
    return false;
  if (problem.bias == BiasMode::kFused && problem.d_rel > (rows <= decode::kMaxWideRows ? 2 * kRelDim : kRelDim)) return false;
  return problem.bias == BiasMode::kNone || rows / problem.group() <= decode::max_tile_tokens(rows);
}

bool is_decode(const Policy& policy) { return policy.tile_keys == decode::kTileKeys; }

int choose_few_rows(const Problem& problem, const Options& options) {
  Problem few = problem;
  few.max_seqlen_q = kFewRows / problem.group();
  if (!takes_decode(few, options)) return 0;
  if (options.deterministic) return kFewRows;
  // The sequences of few rows are only worth two kernels more where their keys can be many.
  const bool may_mix = problem.n_seqs > 1 && problem.n_tokens < problem.n_seqs * problem.max_seqlen_q;
  return may_mix && problem.max_seqlen_k >= 2 * problem.max_seqlen_q ? kFewRows : 0;
}

Policy choose_policy(const Problem& problem, const Device& device, const Options& options) {
  if (takes_decode(problem, options)) return choose_decode(problem, device);
  Policy policy;
  policy.few_rows = choose_few_rows(problem, options);
  policy.tile_rows = prefill::kTileRows;
  policy.tile_keys = prefill::tile_keys_of(problem.bias == BiasMode::kFused ? prefill::rel_steps(problem.d_rel) : 0);
  policy.name = policy.tile_keys == 96 ? "prefill_128x96" : "prefill_128x128";
  policy.n_workers = max_of(1, device.n_sms);
  policy.target_parts = choose_target_parts(problem, policy.few_rows > 0, policy.n_workers);
  policy.min_tiles_per_part = kMinTilesPerPart;
  policy.fixed_tiles_per_part = 32;
  // Where rows may see far more keys than their sequence has queries, their cost lies in the sequence, and the order of the
  // sequences counts; causal triangles end with short units in any order.
  const std::int64_t most_seen = min_of<std::int64_t>(problem.max_seqlen_k, problem.visible.end);
  policy.by_cost = problem.n_seqs > 1 && most_seen >= 2 * problem.max_seqlen_q;
  constexpr Route kRoutes[] = {Route::kNone, Route::kSheared, Route::kFused};  // of BiasMode
  policy.route = kRoutes[static_cast<int>(problem.bias)];
  policy.stages = prefill::kStages;
  // EVIDENCE README.md, figures of prefill: 8K in each shape, and 512 tokens.
  policy.cost = {9, 0.9, problem.head_dim == 64 ? 0.46 : policy.tile_keys == 96 ? 0.64 : 0.7};
  return policy;
}

}  // namespace flashrel::sm90
