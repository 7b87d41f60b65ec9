#include "backend/sm90/policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "backend/sm90/decode/tiles.hpp"
#include "backend/sm90/prefill/logits.hpp"
#include "backend/sm90/prefill/shear.hpp"
#include "backend/sm90/prefill/tiles.hpp"
#include "index/schedule.hpp"
#include "plan/make_plan.hpp"

namespace flashrel::sm90 {
namespace {

Device h200() {
  Device device;
  device.memory = MemoryKind::kCuda;
  device.capability_major = 9;
  device.n_sms = 132;
  device.max_smem_bytes = 227 * 1024;
  return device;
}

// The 8K prefill of a global Inkling layer.
Problem prefill() {
  Problem p;
  p.memory = MemoryKind::kCuda;
  p.n_tokens = 8192;
  p.n_seqs = 1;
  p.n_q_heads = 64;
  p.n_kv_heads = 8;
  p.head_dim = 128;
  p.n_pages = 64;
  p.page_size = 128;
  p.max_pages = 64;
  p.max_seqlen_q = p.max_seqlen_k = 8192;
  p.bias = BiasMode::kFused;
  p.rel_extent = 1024;
  p.d_rel = 16;
  p.softmax_scale = 1.0 / 128;
  p.visible = {0, kFar};
  p.band = {0, 1024};
  Strides& s = p.strides;
  s.q_token = s.out_token = 64 * 128;
  s.q_head = s.out_head = 128;
  s.k_page = s.v_page = 128 * 8 * 128;
  s.k_slot = s.v_slot = 8 * 128;
  s.k_head = s.v_head = 128;
  s.rel_token = 64 * 16;
  s.rel_head = 16;
  s.rel_proj_row = 1024;
  return p;
}

TEST(Sm90Supports, ServesTheModelsOwnLayers) {
  EXPECT_EQ(supports(prefill(), h200(), {}), "");
  for (int n_kv_heads : {4, 8, 16}) {
    Problem p = prefill();
    p.n_kv_heads = n_kv_heads;
    EXPECT_EQ(supports(p, h200(), {}), "");
  }
  for (int head_dim : {64, 128})
    for (int group : {1, 2, 4, 8, 16}) {
      Problem p = prefill();
      p.head_dim = head_dim;
      p.bias = BiasMode::kNone;
      p.n_kv_heads = p.n_q_heads / group;
      EXPECT_EQ(supports(p, h200(), {}), "");
    }
  Problem clamped = prefill();
  clamped.band = {-kFar, kFar};
  EXPECT_EQ(supports(clamped, h200(), {}), "");
  for (int page_size : {8, 24, 64, 100 * 8}) {
    Problem p = prefill();
    p.page_size = page_size;
    EXPECT_EQ(supports(p, h200(), {}), "");
  }
}

// One change each: the sentence names the argument and what was found.
TEST(Sm90Supports, EveryRefusalNamesItsArgument) {
  struct Refused {
    const char* expected;
    std::function<void(Problem&)> change;
  };
  const Refused cases[] = {
      {"dtype: got float32,", [](Problem& p) { p.dtype = DType::kFloat32; }},
      {"head_dim: got 96,", [](Problem& p) { p.head_dim = 96; }},
      {"n_q_heads / n_kv_heads: got 32,", [](Problem& p) { p.bias = BiasMode::kNone, p.n_kv_heads = 2; }},
      {"n_q_heads / n_kv_heads: got 2,", [](Problem& p) { p.n_kv_heads = 32; }},
      {"n_q_heads / n_kv_heads: got 3,", [](Problem& p) { p.bias = BiasMode::kNone, p.n_q_heads = 24; }},
      {"rel_extent: got 1121, sm90 needs at most 1120 with d_rel above 16",
       [](Problem& p) { p.d_rel = 17, p.rel_extent = prefill::max_extent(128, 2) + 1; }},
      {"d_rel: got 33,", [](Problem& p) { p.d_rel = 33; }},
      {"d_rel: got 17, sm90 needs at most 16 with head_dim 64", [](Problem& p) { p.head_dim = 64, p.d_rel = 17; }},
      {"rel_extent: got 1665,", [](Problem& p) { p.rel_extent = prefill::max_extent(128, 1) + 1; }},
      {"q, k_cache, v_cache, rel, rel_logits: got an address aligned to 4 bytes,", [](Problem& p) { p.input_alignment = 4; }},
      {"rel_zero: got -536870912,", [](Problem& p) { p.rel_zero = -prefill::kMaxRelZero; }},
      {"page_size: got 12,", [](Problem& p) { p.page_size = 12; }},
      {"k_cache pages: got 1073741824,", [](Problem& p) { p.n_pages = kMaxLength; }},
      {"softmax_scale: got 0.000000,", [](Problem& p) { p.softmax_scale = 0; }},
      {"softmax_scale: got -1.000000,", [](Problem& p) { p.softmax_scale = -1; }},
      {"q stride of a token: got 8196,", [](Problem& p) { p.strides.q_token = 8196; }},
      {"k_cache stride of a slot: got 0,", [](Problem& p) { p.strides.k_slot = 0; }},
      {"v_cache stride of a page: got 549755813888,", [](Problem& p) { p.strides.v_page = std::int64_t{1} << 39; }},
      {"v_cache stride of a head: got 536870912,", [](Problem& p) { p.strides.v_head = 1 << 29; }},
      {"rel stride of a head: got 12,", [](Problem& p) { p.strides.rel_head = 12; }},
  };
  for (const Refused& refused : cases) {
    Problem p = prefill();
    refused.change(p);
    const std::string reason = supports(p, h200(), {});
    EXPECT_EQ(reason.rfind(refused.expected, 0), 0u) << "got '" << reason << "', expected '" << refused.expected << "'";
    EXPECT_NE(reason.find("sm90 needs"), std::string::npos) << reason;
  }
  for (auto [major, minor] : {std::pair{8, 0}, {9, 1}, {10, 0}}) {
    Device device = h200();
    device.capability_major = major;
    device.capability_minor = minor;
    EXPECT_EQ(supports(prefill(), device, {}).rfind("device: got compute capability", 0), 0u);
  }
}

// vLLM's call: rel_logits of the model's own type, or float32.
Problem prefill_with_logits() {
  Problem p = prefill();
  p.bias = BiasMode::kLogits;
  p.d_rel = 0;
  p.strides.rel_token = p.strides.rel_head = p.strides.rel_proj_row = 0;
  p.strides.rel_logits_token = 64 * 1024;
  p.strides.rel_logits_head = 1024;
  return p;
}

TEST(Sm90Supports, ServesLogitsOfAnyGroupAndExtent) {
  for (int group : {1, 2, 4, 8, 16})
    for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      Problem p = prefill_with_logits();
      p.n_kv_heads = p.n_q_heads / group;
      p.rel_logits_dtype = dtype;
      EXPECT_EQ(supports(p, h200(), {}), "");
      EXPECT_EQ(choose_policy(p, h200(), {}).route, Route::kSheared);
      p.strides.rel_logits_token = 0;
      p.rel_extent = 100000;
      EXPECT_EQ(supports(p, h200(), {}), "");
    }
}

// d_rel above 16 takes two steps of the matrix units a block, and narrower tiles.
TEST(Sm90Supports, ServesLargeDRelOfTheModelsExtents) {
  for (int d_rel : {16, 17, 32})
    for (int extent : {512, 1024}) {
      Problem p = prefill();
      p.d_rel = d_rel;
      p.rel_extent = extent;
      p.strides.rel_head = 32;
      p.strides.rel_token = 64 * 32;
      EXPECT_EQ(supports(p, h200(), {}), "");
      EXPECT_EQ(choose_policy(p, h200(), {}).tile_keys, d_rel == 16 ? 128 : 96);
    }
}

TEST(Sm90Supports, ServesHeadDim64InEveryMode) {
  for (int n_kv_heads : {4, 8, 16}) {
    Problem fused = prefill();
    fused.head_dim = 64;
    fused.n_kv_heads = n_kv_heads;
    fused.rel_extent = prefill::max_extent(64, 1);
    EXPECT_EQ(supports(fused, h200(), {}), "");
    EXPECT_EQ(choose_policy(fused, h200(), {}).tile_keys, 128);
    for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      Problem logits = prefill_with_logits();
      logits.head_dim = 64;
      logits.n_kv_heads = n_kv_heads;
      logits.rel_logits_dtype = dtype;
      EXPECT_EQ(supports(logits, h200(), {}), "");
    }
  }
  Problem other_type = prefill_with_logits();
  other_type.head_dim = 64;
  other_type.rel_logits_dtype = DType::kFloat16;
  EXPECT_EQ(supports(other_type, h200(), {}).rfind("rel_logits dtype: got float16, sm90 needs", 0), 0u);
}

// What decode has not got, `auto` leaves to mma where queries are short.
TEST(Sm90Supports, AutoTurnsShortQueriesAwayThatDecodeHasNotGot) {
  Problem broadcast = prefill_with_logits(), other_type = prefill_with_logits(), clamped = prefill();
  broadcast.strides.rel_logits_token = 0;
  other_type.rel_logits_dtype = DType::kFloat32;
  clamped.band = {-kFar, kFar};
  Problem small_head = prefill(), small_head_none = prefill();
  small_head.head_dim = small_head_none.head_dim = 64;
  small_head_none.bias = BiasMode::kNone;
  for (Problem p : {broadcast, other_type, clamped, small_head, small_head_none}) {
    p.max_seqlen_q = 1;
    Options options;
    EXPECT_EQ(supports(p, h200(), options).rfind("max_seqlen_q: got 1,", 0), 0u);
    options.backend = "sm90";
    EXPECT_EQ(supports(p, h200(), options), "");
    EXPECT_FALSE(is_decode(choose_policy(p, h200(), options)));
  }
}

TEST(Sm90Supports, DecodeTakesLogitsOfFewRows) {
  Problem p = prefill_with_logits();
  p.max_seqlen_q = decode::kMaxLogitsRows / p.group();
  EXPECT_EQ(supports(p, h200(), {}), "");
  EXPECT_TRUE(is_decode(choose_policy(p, h200(), {})));
  ++p.max_seqlen_q;
  EXPECT_NE(supports(p, h200(), {}), "");
  EXPECT_FALSE(is_decode(choose_policy(p, h200(), {})));
  p.n_tokens = p.max_seqlen_q = 1;
  p.strides.rel_logits_token = 0;  // a single token has no stride, and is no table for all tokens
  EXPECT_EQ(supports(p, h200(), {}), "");
  EXPECT_TRUE(is_decode(choose_policy(p, h200(), {})));
}

TEST(Sm90Supports, EveryRefusalOfLogitsNamesItsArgument) {
  struct Refused {
    const char* expected;
    std::function<void(Problem&)> change;
  };
  const Refused cases[] = {
      {"rel_logits stride of a head: got 100,", [](Problem& p) { p.strides.rel_logits_head = 100; }},
      {"rel_logits stride of a head: got 0,", [](Problem& p) { p.strides.rel_logits_head = 0; }},
      {"rel_logits stride of a token: got 6401,", [](Problem& p) { p.strides.rel_logits_token = 6401; }},
      {"rel_logits stride of a token: got -65536,", [](Problem& p) { p.strides.rel_logits_token = -65536; }},
      {"rel_edge: got clamp,", [](Problem& p) { p.band = {-kFar, kFar}; }},
      {"rel_zero: got 536870912,", [](Problem& p) { p.rel_zero = prefill::kMaxRelZero; }},
  };
  for (const Refused& refused : cases) {
    Problem p = prefill_with_logits();
    refused.change(p);
    const std::string reason = supports(p, h200(), {});
    EXPECT_EQ(reason.rfind(refused.expected, 0), 0u) << "got '" << reason << "', expected '" << refused.expected << "'";
  }
  Options options;
  options.route = "score_mod";
  EXPECT_EQ(supports(prefill_with_logits(), h200(), options).rfind("route: got score_mod, sm90 needs sheared", 0), 0u);
}

TEST(Sm90Supports, SingletonDimensionsMayHaveAnyStride) {
  Problem p = prefill();
  p.n_q_heads = 8;
  p.n_kv_heads = 1;
  p.n_pages = 1;
  p.strides.k_head = p.strides.v_head = 3;
  p.strides.k_page = p.strides.v_page = -1;
  EXPECT_EQ(supports(p, h200(), {}), "");
}

TEST(Sm90Supports, DecodeServesEveryGroupOfPrefillWithABias) {
  for (const auto& [n_kv_heads, q_len] : {std::pair{64, 9}, {32, 9}, {16, 9}, {16, 18}, {8, 9}, {4, 4}}) {
    Problem p = prefill();
    p.n_kv_heads = n_kv_heads;
    p.max_seqlen_q = q_len;
    p.rel_extent = 100000;
    EXPECT_EQ(supports(p, h200(), {}), "") << n_kv_heads;
    EXPECT_TRUE(is_decode(choose_policy(p, h200(), {})));
  }
  Problem p = prefill();
  p.n_kv_heads = 32, p.max_seqlen_q = 20;  // 40 rows of 20 tokens: more biases than a tile has room for
  EXPECT_FALSE(takes_decode(p, {}));
  p.bias = BiasMode::kNone;
  EXPECT_TRUE(takes_decode(p, {}));
}

// Two k steps of a product need more shared memory: few rows only.
TEST(Sm90Supports, DecodeServesWideRelOfFewRows) {
  for (const int d_rel : {17, 24, 32, 33})
    for (const int q_len : {1, 4, 5, 9}) {
      Problem p = prefill();
      p.max_seqlen_q = q_len;
      p.d_rel = d_rel;
      const bool takes = d_rel <= 32 && q_len * 8 <= decode::kMaxWideRows;
      EXPECT_EQ(takes_decode(p, {}), takes) << d_rel << " " << q_len;
      EXPECT_EQ(supports(p, h200(), {}).empty(), takes) << "prefill is slower than mma here";
    }
}

// Else a short sequence would change its kernel, and so its bits, with the length of a neighbour.
TEST(Sm90Policy, DeterministicCallsKeepTheirKernelWhateverTheirLength) {
  Problem p = prefill();
  Options options;
  options.deterministic = true;
  for (const int q_len : {1, 4, 5, 9, 100}) {
    p.max_seqlen_q = q_len;
    EXPECT_EQ(supports(p, h200(), options), "");
    const Policy policy = choose_policy(p, h200(), options);
    EXPECT_EQ(is_decode(policy), q_len * 8 <= kFewRows);
    EXPECT_EQ(policy.few_rows, is_decode(policy) ? 0 : kFewRows);
  }
  // Decode alone has these: a longer neighbour would take such a sequence to another backend.
  p.n_kv_heads = 32, p.max_seqlen_q = 1;
  EXPECT_EQ(supports(p, h200(), {}), "");
  EXPECT_EQ(supports(p, h200(), options).rfind("n_q_heads / n_kv_heads: got 2,", 0), 0u);
}

// Chunks and decodes in one call: a plan for either, whose schedules share out the sequences.
TEST(Sm90Policy, MixedBatchesHaveAPlanForTheFewRows) {
  Problem p = prefill();
  p.n_seqs = 128;
  p.n_tokens = 127 + 2048;
  p.max_seqlen_q = 2048;
  p.max_seqlen_k = 65536;
  Plan plan;
  ASSERT_TRUE(make_plan(p, h200(), {.backend = "sm90"}, plan).ok());
  ASSERT_EQ(plan.few_rows.size(), 1u);
  const Plan& few = plan.few_rows[0];
  EXPECT_FALSE(is_decode(plan.policy));
  EXPECT_TRUE(is_decode(few.policy));
  EXPECT_EQ(few.policy.tile_rows, kFewRows);
  EXPECT_EQ(plan.schedule.served_rows, (Range{kFewRows + 1, kFar}));
  EXPECT_EQ(few.schedule.served_rows, (Range{0, kFewRows + 1}));
  for (const auto& [ledger, name, bytes] :
       {std::tuple{&plan.workspace, kFewRowsWorkspaceEntry, few.workspace.total_bytes()},
        {&plan.schedule_memory, kFewRowsScheduleEntry, few.schedule_memory.total_bytes()}}) {
    const auto entry = std::find_if(ledger->entries().begin(), ledger->entries().end(),
                                    [name = name](const Workspace::Entry& e) { return e.name == name; });
    ASSERT_NE(entry, ledger->entries().end()) << name;
    EXPECT_EQ(entry->bytes, bytes) << name;
  }
  Plan other = plan;
  other.few_rows[0].schedule.n_shares = 7;
  EXPECT_NE(schedule_key(p, plan), schedule_key(p, other));

  const auto is_mixed = [](const Problem& problem) { return choose_few_rows(problem, {}) > 0; };
  EXPECT_TRUE(is_mixed(p));
  Problem equal = p, fresh = p, alone = p, clamped = p;
  equal.n_tokens = equal.n_seqs * equal.max_seqlen_q;
  fresh.max_seqlen_k = fresh.max_seqlen_q;
  alone.n_seqs = 1, alone.n_tokens = 2000;
  clamped.band = {-kFar, kFar};
  for (const Problem& problem : {equal, fresh, alone, clamped}) EXPECT_FALSE(is_mixed(problem));
}

TEST(Sm90Policy, DecodeTakesTheSmallestInstanceAndEverySm) {
  for (int q_len = 0; q_len <= 9; ++q_len) {
    Problem p = prefill();
    p.max_seqlen_q = q_len;
    const Policy policy = choose_policy(p, h200(), {});
    ASSERT_TRUE(is_decode(policy));
    EXPECT_EQ(policy.tile_rows, decode::instance_rows(q_len * 8));
    EXPECT_NE(policy.name.find(std::to_string(policy.tile_rows)), std::string_view::npos);
    Device part = h200();
    part.n_sms = 78;
    EXPECT_EQ(choose_policy(p, part, {}).n_workers, 78);
  }
}

TEST(Sm90Policy, CutsOnlyWhereTilesAreTooFew) {
  const auto target = [](std::int64_t q, std::int64_t kv, int heads, int kv_heads) {
    Problem p = prefill();
    p.n_tokens = p.max_seqlen_q = q;
    p.max_seqlen_k = kv;
    p.n_q_heads = heads;
    p.n_kv_heads = kv_heads;
    return choose_policy(p, h200(), {}).target_parts;
  };
  EXPECT_EQ(target(8192, 8192, 64, 8), 0);
  EXPECT_GT(target(512, 512, 8, 1), 0);
  EXPECT_LT(target(512, 512, 8, 1), 132);
  EXPECT_GT(target(2304, 32768, 8, 1), 132) << "144 equal units would take two waves";
  EXPECT_EQ(target(2304, 2304, 8, 1), 0) << "short units fill the gaps of a causal triangle";
}

TEST(Sm90Policy, SequencesOfMixedContextsComeByCost) {
  Problem p = prefill();
  p.n_seqs = 8;
  p.n_tokens = 8 * 2048;
  p.max_seqlen_q = 2048;
  p.max_seqlen_k = 32768;
  EXPECT_TRUE(choose_policy(p, h200(), {}).by_cost);
  p.visible = visible_distances(true, 4095, -1);
  EXPECT_TRUE(choose_policy(p, h200(), {}).by_cost);
  p.visible = visible_distances(true, 511, -1);
  EXPECT_FALSE(choose_policy(p, h200(), {}).by_cost) << "a window bounds what a row costs";
  p.visible = visible_distances(true, -1, -1);
  p.max_seqlen_k = 2048;
  EXPECT_FALSE(choose_policy(p, h200(), {}).by_cost) << "causal triangles end with short units in any order";
  p.n_seqs = 1;
  p.max_seqlen_k = 32768;
  EXPECT_FALSE(choose_policy(p, h200(), {}).by_cost);
}

// A few rows on 128K keys, too many for decode, in a batch of prefills are cut; the prefills are not.
TEST(Sm90Policy, LongContextsAmongPrefillsAreCut) {
  Problem p = prefill();
  p.n_seqs = 9;
  p.n_tokens = 8 * 2048 + 9;
  p.max_seqlen_q = 2048;
  p.max_seqlen_k = 131072;
  const Policy policy = choose_policy(p, h200(), {});
  const ScheduleShape shape = make_schedule_shape(p, {}, policy);
  int decode_parts = 0, longest = 0;
  const auto lengths_of = [](int seq) { return seq == 4 ? Lengths{9, 131072} : Lengths{2048, 2048}; };
  build_schedule(shape, lengths_of, [&](const WorkItem& item) {
    longest = max_of(longest, item.tile_end - item.tile_begin);
    if (item.seq == 4) decode_parts = item.n_parts;
    if (item.seq != 4) {
      EXPECT_EQ(item.n_parts, 1);
    }
  });
  EXPECT_GE(decode_parts, 4);
  const std::int64_t tiles_per_cta = batch_tiles(shape, lengths_of) / 132;
  EXPECT_LE(longest, tiles_per_cta) << "else one CTA works while the others wait";
}

// 128 equal units on 132 SMs are nearly one wave: they must stay whole.
TEST(Sm90Policy, AChunkThatFillsAWaveStaysWhole) {
  Problem p = prefill();
  p.n_q_heads = 8;
  p.n_kv_heads = 1;
  p.n_tokens = p.max_seqlen_q = 2048;
  p.max_seqlen_k = 32768;
  const Policy policy = choose_policy(p, h200(), {});
  const ScheduleShape shape = make_schedule_shape(p, {}, policy);
  int n_items = 0;
  build_schedule(shape, [](int) { return Lengths{2048, 32768}; }, [&](const WorkItem&) { ++n_items; });
  EXPECT_EQ(n_items, 128);
}

// The same among decodes, which have a plan of their own.
TEST(Sm90Policy, AChunkAmongDecodesStaysWhole) {
  Problem p = prefill();
  p.n_q_heads = 8;
  p.n_kv_heads = 1;
  p.n_seqs = 128;
  p.n_tokens = 2048 + 127;
  p.max_seqlen_q = 2048;
  p.max_seqlen_k = 65536;
  const Policy policy = choose_policy(p, h200(), {});
  const ScheduleShape shape = make_schedule_shape(p, {}, policy);
  int n_items = 0;
  build_schedule(
      shape, [](int seq) { return seq == 5 ? Lengths{2048, 32768} : Lengths{1, 65536}; }, [&](const WorkItem&) { ++n_items; });
  EXPECT_EQ(n_items, 128);
}

}  // namespace
}  // namespace flashrel::sm90
