// The one-line case language of tests, benchmarks, the command line and bug reports:
//
//   q=1 kv=131072 b=1 hq=8 hkv=1 d=128 page=64 window=-1 extent=1024 bias=fused dtype=bf16
//
// Keys may come in any order and default to the values below; case_keys() lists them with their meaning.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "base/types.hpp"

namespace flashrel::check {

// How K and V lie in memory: two tensors (page, slot, head, d), or halves of one row in (page, slot, head, 2d) or
// (page, head, slot, 2d).
enum class Layout { kSplit, kNhd, kHnd };

// kRandom: like a real layer. kZeroQ: q = 0, so that the result shows the bias alone. kOneHot: q = 0, one loud bias entry a
// row, and a V row that spells its key in bits, so that the result names the key that the bias pointed at.
enum class Content { kRandom, kZeroQ, kOneHot };

enum class LseLayout { kAbsent, kTokenMajor, kHeadMajor };

struct Case {
  std::vector<std::int64_t> q_lens{1}, kv_lens{128};  // a sequence each; the same number in both
  std::int64_t n_q_heads = 8, n_kv_heads = 1, head_dim = 128, page_size = 64;
  bool causal = true;
  std::int64_t window_left = -1, window_right = -1;
  double softmax_scale = std::numeric_limits<double>::quiet_NaN();  // NaN = 1 / head_dim
  DType dtype = DType::kBFloat16;

  BiasMode bias = BiasMode::kFused;
  std::int64_t extent = 1024, d_rel = 16, rel_zero = 0;
  RelEdge edge = RelEdge::kZero;
  bool has_rel_scale = false;
  bool rel_dtype_is_dtype = true;  // rel_logits come in `dtype`, else in rel_dtype
  DType rel_dtype = DType::kFloat32;
  bool broadcast_logits = false;  // one table for all tokens: token stride 0

  std::int64_t num_splits = 0;
  bool deterministic = false;
  std::int64_t max_q = -1, max_kv = -1;  // bounds given to the plan; -1 = the longest sequence

  Layout layout = Layout::kSplit;
  LseLayout lse = LseLayout::kTokenMajor;
  std::int64_t q_pad = 0, out_pad = 0, kv_pad = 0;  // elements after each token of q, of out, after each page
  std::int64_t spare_tokens = 0;                    // rows past the last sequence
  std::int64_t spare_pages = 2;                     // pages that no sequence uses
  std::int64_t table_pad = 1;                       // garbage entries past the longest sequence
  bool shuffled = true;                             // pages in random order

  double gain = 1;  // factor of the bias
  Content content = Content::kRandom;
  bool poison = false;  // NaN in everything that no visible key needs

  std::size_t n_seqs() const { return q_lens.size(); }
  std::int64_t n_tokens() const;  // spare ones included
  double scale() const { return softmax_scale == softmax_scale ? softmax_scale : 1.0 / static_cast<double>(head_dim); }
};

// One sentence names the key, what was found and what was expected.
Status parse_case(std::string_view line, Case& parsed);
// Shortest line that parses to the same case; q, kv, heads, d, page, bias and dtype are always there.
std::string print_case(const Case& c);

// Cases of a file: one a line; empty lines and lines that start with # are skipped.
struct CaseLine {
  std::string text;
  int line_number = 0;
  Case parsed;
};
Status read_case_file(const std::string& path, std::vector<CaseLine>& cases);
// The same from text; `name` stands in front of errors.
Status parse_cases(const std::string& name, const std::string& text, std::vector<CaseLine>& cases);

struct KeyHelp {
  std::string name, meaning;
};
std::vector<KeyHelp> case_keys();

}  // namespace flashrel::check
