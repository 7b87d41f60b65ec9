// The contract's cases on every backend: the case files line by line, and draws from the whole matrix.
#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "check/case_line.hpp"
#include "support/runners.hpp"

namespace flashrel::test {
namespace {

TEST(CaseFile, EveryLineIsRight) {
  std::vector<check::CaseLine> lines;
  const Status status = check::read_case_file(FLASHREL_SOURCE_DIR "/cases/conformance.txt", lines);
  ASSERT_TRUE(status.ok()) << status.text;
  ASSERT_FALSE(lines.empty());
  for (const check::CaseLine& line : lines) expect_right(line.text, 400);
  std::printf("%zu cases\n", lines.size());
}

// Axes of the matrix in the words of the case language.
const std::vector<std::vector<std::string>>& axes() {
  static const std::vector<std::vector<std::string>> all = {
      {"q=1 kv=300", "q=9 kv=700", "q=37 kv=37", "q=20 kv=13", "q=130 kv=257", "q=5,3 kv=0,40", "q=64,1,0,17 kv=64,500,33,129",
       "q=1,1,1,1 kv=1047,500,137,1"},
      {"hq=1 hkv=1", "hq=3 hkv=1", "hq=4 hkv=1", "hq=8 hkv=1", "hq=8 hkv=2", "hq=16 hkv=2", "hq=64 hkv=8", "hq=64 hkv=16"},
      {"d=64", "d=128", "d=32"},
      {"page=1", "page=8", "page=16", "page=32", "page=64", "page=128", "page=256"},
      {"bias=none", "bias=logits", "bias=logits rel_dtype=fp32", "bias=fused", "bias=fused rel_scale=1"},
      {"extent=1", "extent=64", "extent=128", "extent=512", "extent=1024", "extent=1048"},
      {"window=-1", "window=1", "window=512", "window=-1 causal=0", "window=30:7 causal=0 rel_zero=7"},
      {"edge=zero", "edge=zero", "edge=clamp"},
      {"dtype=bf16", "dtype=fp16", "dtype=bf16", "dtype=fp16", "dtype=fp32"},
      {"splits=0", "splits=1", "splits=3", "splits=32", "splits=128"},
      {"layout=split", "layout=NHD", "layout=HND kv_pad=64"},
      {"deterministic=0", "deterministic=1"},
      {"poison=0", "poison=1"},
  };
  return all;
}

class Matrix : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Draws, Matrix, testing::Range(0, 10));

TEST_P(Matrix, DrawnCasesAreRight) {
  constexpr int kCases = 24;
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  for (int i = 0; i < kCases; ++i) {
    std::string line;
    for (const auto& axis : axes()) line += axis[random() % axis.size()] + " ";
    expect_right(line, 64);
  }
  std::printf("%d cases\n", kCases);
}

}  // namespace
}  // namespace flashrel::test
