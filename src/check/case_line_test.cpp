#include "check/case_line.hpp"

#include <gtest/gtest.h>

namespace flashrel::check {
namespace {

TEST(CaseLine, ReadsTheExampleOfTheManual) {
  Case c;
  const std::string line = "q=1 kv=131072 b=1 hq=8 hkv=1 d=128 page=64 window=-1 extent=1024 bias=fused dtype=bf16";
  ASSERT_TRUE(parse_case(line, c).ok());
  EXPECT_EQ(c.q_lens, std::vector<std::int64_t>{1});
  EXPECT_EQ(c.kv_lens, std::vector<std::int64_t>{131072});
  EXPECT_EQ(c.window_left, -1);
  EXPECT_EQ(c.bias, BiasMode::kFused);
  EXPECT_EQ(c.scale(), 1.0 / 128);
}

TEST(CaseLine, PrintsWhatItReads) {
  for (const std::string line : {
           "q=1 kv=131072 hq=8 hkv=1 d=128 page=64 bias=fused dtype=bf16",
           "q=200,1,137 kv=900,1,1408 b=3 hq=16 hkv=2 d=64 page=16 window=511 bias=logits dtype=fp16 rel_dtype=fp32",
           "q=5 kv=7 b=2 hq=1 hkv=1 d=8 page=1 window=3:2 causal=0 scale=0.25 extent=9 bias=fused dtype=fp32 d_rel=4 "
           "rel_scale=1 "
           "rel_zero=4 edge=clamp",
           "q=5 kv=7 hq=1 hkv=1 d=8 page=1 bias=none dtype=bf16 splits=3 deterministic=1 max_q=9 max_kv=64 layout=HND lse=head "
           "q_pad=8 out_pad=16 kv_pad=32 spare_tokens=2 spare_pages=0 table_pad=4 shuffled=0 gain=16 content=onehot poison=1",
           "q=1 kv=128 b=0 hq=8 hkv=1 d=128 page=64 bias=none dtype=bf16",
       }) {
    Case c, again;
    ASSERT_TRUE(parse_case(line, c).ok()) << parse_case(line, c).text;
    if (c.n_seqs() > 0) {
      EXPECT_EQ(print_case(c), line);
    }
    ASSERT_TRUE(parse_case(print_case(c), again).ok()) << print_case(c);
    EXPECT_EQ(print_case(again), print_case(c));
    EXPECT_EQ(again.n_seqs(), c.n_seqs());
  }
}

TEST(CaseLine, OneSentenceNamesKeyFoundAndExpected) {
  const auto sentence = [](const char* line) {
    Case c;
    return parse_case(line, c).text;
  };
  EXPECT_EQ(sentence("page=0"), "page: got '0', expected an integer of 1...1073741823");
  EXPECT_EQ(sentence("bias=maybe"), "bias: got 'maybe', expected one of none, logits, fused");
  EXPECT_EQ(sentence("q=1 q=2"), "case line: key 'q' given twice");
  EXPECT_EQ(sentence("q=1,x"), "q: got '1,x', expected comma-separated lengths of 0...1073741823");
  EXPECT_EQ(sentence("q=1,2 kv=1,2,3"), "q: got 2 lengths for 3 sequences, expected 1 or 3");
  EXPECT_EQ(sentence("hq=6 hkv=4"), "hq: got 6, expected a multiple of hkv 4");
  EXPECT_EQ(sentence("scale=nan"), "scale: got 'nan', expected a finite number");
  EXPECT_EQ(sentence("kv=9 max_kv=8"), "max_kv: got 8, expected at least the longest sequence, 9");
  EXPECT_EQ(sentence("window=3:x"), "window: got '3:x', expected L or L:R, each -1 or more");
  EXPECT_EQ(sentence("pages"), "case line: got 'pages', expected key=value");
  EXPECT_EQ(sentence("colour=red").find("case line: unknown key 'colour', expected one of: b q kv"), 0u);
}

}  // namespace
}  // namespace flashrel::check
