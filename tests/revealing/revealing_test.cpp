// Inputs under which a missing, shifted or doubled bias changes whole numbers, not digits that a tolerance may hide.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/runners.hpp"

namespace flashrel::test {
namespace {

using check::HostProblem;

// Lengths at which a bias origin that is right only for q_len == kv_len shows, and the boundaries of tiles and extents.
const char* const kLengths[] = {"q=128 kv=1408",
                                "q=256 kv=1024",
                                "q=1 kv=2048",
                                "q=1 kv=4096",
                                "q=200,1,137,64 kv=200,901,1545,127",
                                "q=1,1,1,1 kv=2048,1001,138,4096",
                                "q=70 kv=70",
                                "q=65 kv=64",
                                "q=9 kv=1033",
                                "q=1,0,5 kv=1,7,600"};
const char* const kModes[] = {"bias=logits", "bias=logits rel_dtype=fp32", "bias=fused", "bias=fused rel_scale=1"};

struct Place {
  std::int64_t token;
  int seq, token_in_seq, q_len, kv_len;
};

std::vector<Place> places(const HostProblem& host) {
  std::vector<Place> all;
  const auto* prefix = static_cast<const std::int32_t*>(host.args.cu_seqlens_q.data);
  const auto* kv_lens = static_cast<const std::int32_t*>(host.args.cache_seqlens.data);
  for (int seq = 0; seq < host.args.cache_seqlens.shape[0]; ++seq)
    for (int i = 0; i < prefix[seq + 1] - prefix[seq]; ++i)
      all.push_back({prefix[seq] + i, seq, i, prefix[seq + 1] - prefix[seq], kv_lens[seq]});
  return all;
}

// L[token, head, index], by the contract's formula.
float table_entry(const HostProblem& host, std::int64_t token, std::int64_t head, std::int64_t index) {
  const auto load = [](const flashrel_tensor& t, std::int64_t at) {
    return load_float(t.data, static_cast<DType>(t.dtype), at);
  };
  const flashrel_attention_args& a = host.args;
  if (a.rel_logits.rank > 0) return load(a.rel_logits, token * a.rel_logits.stride[0] + head * a.rel_logits.stride[1] + index);
  float sum = 0;
  for (std::int64_t e = 0; e < a.rel.shape[2]; ++e)
    sum +=
        load(a.rel, token * a.rel.stride[0] + head * a.rel.stride[1] + e) * load(a.rel_proj, e * a.rel_proj.stride[0] + index);
  return a.rel_scale.rank > 0 ? load(a.rel_scale, token * a.rel_scale.stride[0]) * sum : sum;
}

std::int64_t extent_of(const HostProblem& host) {
  return host.args.rel_logits.rank > 0 ? host.args.rel_logits.shape[2] : host.args.rel_proj.shape[1];
}

// The index of the one loud entry of a row of L.
std::int64_t loud_index(const HostProblem& host, std::int64_t token, std::int64_t head) {
  for (std::int64_t index = 0; index < extent_of(host); ++index)
    if (table_entry(host, token, head, index) > 32) return index;
  return -1;
}

// V spells its key: column e is +1 where bit e % 20 of the key is set, else -1. Returns -1 when the row mixes keys.
std::int64_t named_key(const float* row, std::int64_t head_dim) {
  std::int64_t key = 0;
  for (std::int64_t e = 0; e < head_dim; ++e) {
    if (std::fabs(std::fabs(row[e]) - 1.0f) > 1e-3f) return -1;
    if (e < 20 && row[e] > 0) key |= std::int64_t{1} << e;
  }
  return key;
}

// Every row whose loud distance is visible must return exactly the key at that distance.
void expect_named_keys(const std::string& case_line, std::int64_t least_rows) {
  HostProblem host = make(case_line + " content=onehot");
  const flashrel_attention_args& a = host.args;
  const std::int64_t n_heads = a.q.shape[1];
  for_each_result(host, [&](const Runner& runner, const check::RunResult& result) {
    std::int64_t n_rows = 0;
    for (const Place& place : places(host))
      for (std::int64_t head = 0; head < n_heads; ++head) {
        const std::int64_t dist = loud_index(host, place.token, head) - a.rel_zero;
        const std::int64_t q_pos = place.token_in_seq + place.kv_len - place.q_len, key = q_pos - dist;
        const bool visible = key >= 0 && key < place.kv_len && !(a.causal && dist < 0) &&
                             !(a.window_left >= 0 && dist > a.window_left) && !(a.window_right >= 0 && -dist > a.window_right);
        if (!visible) continue;
        ++n_rows;
        ASSERT_EQ(named_key(row_of(result, host, place.token, head), a.q.shape[2]), key)
            << runner.name << ", case: " << host.label << ", sequence " << place.seq << ", row " << place.token_in_seq
            << ", head " << head << ", loud distance " << dist;
      }
    ASSERT_GE(n_rows, least_rows) << "the case reveals too little: " << host.label;
  });
}

TEST(Revealing, TheOutputNamesTheKeyThatTheBiasPointedAt) {
  for (const char* lengths : kLengths)
    for (const char* mode : kModes)
      for (const char* window : {"", " window=512"})
        expect_named_keys(std::string(lengths) + window + " hq=4 hkv=2 d=64 page=16 extent=128 dtype=bf16 " + mode, 4);
}

TEST(Revealing, EverySplitPutsTheBiasAtTheSameKey) {
  for (const char* lengths : {"q=1 kv=2048", "q=9 kv=1033", "q=128 kv=300"})
    for (const char* splits : {" splits=2", " splits=3", " splits=32", " splits=128", " deterministic=1"})
      for (const char* mode : {"bias=logits", "bias=fused"})
        expect_named_keys(std::string(lengths) + splits + " hq=8 hkv=1 d=128 page=64 extent=1024 dtype=bf16 " + mode, 4);
}

TEST(Revealing, SignedDistances) {
  for (const char* lengths : {"q=70 kv=70", "q=64 kv=200", "q=130 kv=257"})
    for (const char* mode : kModes)
      expect_named_keys(std::string(lengths) + " causal=0 rel_zero=40 hq=4 hkv=1 d=64 page=16 extent=90 dtype=bf16 " + mode,
                        20);
}

TEST(Revealing, WideGroupsAndOddPages) {
  for (const char* shape : {"hq=8 hkv=1 page=64", "hq=3 hkv=1 page=13", "hq=16 hkv=2 page=1", "hq=4 hkv=4 page=100"})
    for (const char* mode : {"bias=logits", "bias=fused"})
      for (const char* lengths : {"q=40 kv=300", "q=1 kv=777"})
        expect_named_keys(std::string(lengths) + " d=64 extent=200 dtype=fp16 " + shape + " " + mode, 3);
}

TEST(Revealing, IntegerBiasesWithoutQ) {
  for (const char* lengths : kLengths)
    for (const char* mode : kModes)
      expect_right(std::string(lengths) + " content=zeroq hq=4 hkv=2 d=64 page=16 extent=100 dtype=bf16 " + mode, 200);
}

TEST(Revealing, LoudBiases) {
  for (const char* lengths : {"q=128 kv=1408", "q=1 kv=2048", "q=70 kv=70"})
    for (const char* mode : kModes)
      expect_right(std::string(lengths) + " gain=16 hq=4 hkv=2 d=64 page=16 extent=512 dtype=bf16 " + mode, 200);
}

// Writes L(index) for every row and head of a rel_logits problem.
template <class Table>
void set_table(HostProblem& host, Table&& value_at) {
  const flashrel_tensor& t = host.args.rel_logits;
  for (std::int64_t token = 0; token < t.shape[0]; ++token)
    for (std::int64_t head = 0; head < t.shape[1]; ++head)
      for (std::int64_t index = 0; index < t.shape[2]; ++index)
        store_float(t.data, static_cast<DType>(t.dtype), token * t.stride[0] + head * t.stride[1] + index, value_at(index));
}

// A bias of +64 over [0, extent) leaves nothing of the keys outside: it equals a window of `extent` keys.
TEST(Revealing, AWallOfBiasIsAWindow) {
  for (const int extent : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200})
    for (const char* lengths : {"q=90 kv=300", "q=1 kv=300", "q=140 kv=140"}) {
      const std::string shape = std::string(lengths) + " hq=4 hkv=1 d=64 page=16 dtype=bf16 lse=0 ";
      HostProblem wall = make(shape + "bias=logits extent=" + std::to_string(extent));
      set_table(wall, [](std::int64_t) { return 64.0f; });
      const HostProblem window = make(shape + "bias=none window=" + std::to_string(extent - 1));
      check::Reference reference;
      ASSERT_TRUE(check::make_reference(window, 100, reference).ok());
      for_each_result(
          wall, [&](const Runner& runner, const check::RunResult& result) { expect_verdict(runner, wall, reference, result); });
    }
}

// A bias of -64 over [0, extent) leaves only the keys at distances >= extent: the row at position `extent` sees key 0 alone,
// and the row before it, whose distances all lie inside, sees the plain average of its keys.
TEST(Revealing, TheBandEndsExactlyAtTheExtent) {
  for (const int extent : {1, 31, 32, 33, 64, 127, 128, 200}) {
    HostProblem host =
        make("q=250 kv=250 content=onehot hq=2 hkv=1 d=64 page=16 bias=logits dtype=bf16 extent=" + std::to_string(extent));
    set_table(host, [](std::int64_t) { return -64.0f; });
    for_each_result(host, [&](const Runner& runner, const check::RunResult& result) {
      for (std::int64_t head = 0; head < 2; ++head) {
        ASSERT_EQ(named_key(row_of(result, host, extent, head), 64), 0) << runner.name << " extent " << extent;
        const float lse = result.lse[static_cast<std::size_t>((extent - 1) * 2 + head)];
        ASSERT_NEAR(lse, std::log(static_cast<float>(extent)) - 64.0f, 1e-3f) << runner.name << " extent " << extent;
      }
    });
  }
}

// The last entry covers everything beyond the extent, the first everything before it (edge clamp).
TEST(Revealing, ClampCoversTheRest) {
  for (const char* lengths : {"q=100 kv=100", "q=50 kv=300", "q=1 kv=700"}) {
    HostProblem host =
        make(std::string(lengths) +
             " causal=0 rel_zero=8 edge=clamp content=zeroq hq=2 hkv=1 d=64 page=16 extent=17 bias=logits dtype=bf16");
    expect_right(host);
    // Everything at the last index or beyond is 64 louder: equal weights there, nothing elsewhere.
    set_table(host, [](std::int64_t index) { return index == 16 ? 64.0f : 0.0f; });
    for_each_result(host, [&](const Runner& runner, const check::RunResult& result) {
      for (const Place& place : places(host)) {
        const int far_keys = place.token_in_seq + place.kv_len - place.q_len - 8 + 1;  // dist >= 8
        if (far_keys <= 0) continue;
        const float lse = result.lse[static_cast<std::size_t>(place.token * 2)];
        ASSERT_NEAR(lse, 64.0f + std::log(static_cast<float>(far_keys)), 1e-3f) << runner.name << " token " << place.token;
      }
    });
  }
}

// softmax_scale multiplies q.k and never the bias.
TEST(Revealing, TheScaleDoesNotTouchTheBias) {
  for (const char* scale : {"scale=0", "scale=0.001", "scale=-0.5"})
    for (const char* mode : {"bias=logits", "bias=fused"})
      expect_right(std::string("q=20 kv=150 hq=4 hkv=1 d=64 page=16 extent=64 gain=4 dtype=bf16 ") + scale + " " + mode);
}

}  // namespace
}  // namespace flashrel::test
