#include "check/case_line.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "index/distance.hpp"

namespace flashrel::check {
namespace {

constexpr std::int64_t kLargest = kMaxLength - 1;

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_in(std::string_view text, std::int64_t low, std::int64_t high, std::int64_t& value) {
  return read_number(text, value) && low <= value && value <= high;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool read_lengths(std::string_view text, std::vector<std::int64_t>& lengths) {
  lengths.clear();
  for (const std::string_view part : split(text, ',')) {
    std::int64_t length = 0;
    if (!read_in(part, 0, kLargest, length)) return false;
    lengths.push_back(length);
  }
  return true;
}

std::string print_lengths(const std::vector<std::int64_t>& lengths) {
  if (lengths.empty()) return "0";  // b=0 says the rest
  const bool all_equal = std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end();
  if (all_equal) return std::to_string(lengths[0]);
  std::string text;
  for (const std::int64_t length : lengths) text += (text.empty() ? "" : ",") + std::to_string(length);
  return text;
}

std::string print_double(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

// One key of the language: reading and printing stand side by side so that they cannot drift apart.
struct Key {
  std::string name, meaning, expected;
  bool always = false;  // printed even at its default
  std::function<bool(std::string_view, Case&)> read;
  std::function<std::string(const Case&)> print;
};

Key integer(std::string name, std::int64_t Case::* field, std::int64_t low, std::int64_t high, std::string meaning) {
  return {std::move(name),
          std::move(meaning),
          "an integer of " + std::to_string(low) + "..." + std::to_string(high),
          false,
          [=](std::string_view text, Case& c) { return read_in(text, low, high, c.*field); },
          [=](const Case& c) { return std::to_string(c.*field); }};
}

Key flag(std::string name, bool Case::* field, std::string meaning) {
  return {std::move(name),
          std::move(meaning),
          "0 or 1",
          false,
          [=](std::string_view text, Case& c) {
            c.*field = text == "1";
            return text == "0" || text == "1";
          },
          [=](const Case& c) { return c.*field ? "1" : "0"; }};
}

Key number(std::string name, double Case::* field, std::string meaning) {
  return {std::move(name),
          std::move(meaning),
          "a finite number",
          false,
          [=](std::string_view text, Case& c) { return read_number(text, c.*field) && std::isfinite(c.*field); },
          [=](const Case& c) { return print_double(c.*field); }};
}

template <class Enum>
Key choice(std::string name, Enum Case::* field, std::vector<std::pair<std::string, Enum>> words, std::string meaning) {
  std::string expected;
  for (const auto& [word, value] : words) expected += (expected.empty() ? "" : ", ") + word;
  return {std::move(name),
          std::move(meaning),
          "one of " + expected,
          false,
          [=](std::string_view text, Case& c) {
            for (const auto& [word, value] : words)
              if (word == text) {
                c.*field = value;
                return true;
              }
            return false;
          },
          [=](const Case& c) {
            for (const auto& [word, value] : words)
              if (value == c.*field) return word;
            return std::string();
          }};
}

const std::vector<std::pair<std::string, DType>> kFloats = {
    {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};

Key window_key() {
  return {"window",
          "keys to the left of a row's own, or left:right; -1 = unlimited",
          "L or L:R, each -1 or more",
          false,
          [](std::string_view text, Case& c) {
            const auto parts = split(text, ':');
            c.window_right = -1;
            return parts.size() <= 2 && read_in(parts[0], -1, kLargest, c.window_left) &&
                   (parts.size() == 1 || read_in(parts[1], -1, kLargest, c.window_right));
          },
          [](const Case& c) {
            const std::string left = std::to_string(c.window_left);
            return c.window_right < 0 ? left : left + ":" + std::to_string(c.window_right);
          }};
}

Key rel_dtype_key() {
  Key key = choice("rel_dtype", &Case::rel_dtype, kFloats, "type of rel_logits; default: as dtype");
  key.read = [read = key.read](std::string_view text, Case& c) {
    c.rel_dtype_is_dtype = false;
    return read(text, c);
  };
  key.print = [print = key.print](const Case& c) { return c.rel_dtype_is_dtype ? std::string() : print(c); };
  return key;
}

Key scale_key() {
  Key key = number("scale", &Case::softmax_scale, "softmax_scale; default: 1 / d");
  key.print = [](const Case& c) { return std::isnan(c.softmax_scale) ? std::string() : print_double(c.softmax_scale); };
  return key;
}

Key length_key(std::string name, std::vector<std::int64_t> Case::* field, std::string meaning) {
  return {std::move(name),
          std::move(meaning),
          "comma-separated lengths of 0..." + std::to_string(kLargest),
          true,
          [=](std::string_view text, Case& c) { return read_lengths(text, c.*field); },
          [=](const Case& c) { return print_lengths(c.*field); }};
}

Key always(Key key) {
  key.always = true;
  return key;
}

const std::vector<Key>& keys() {
  static const std::vector<Key> all = {
      length_key("q", &Case::q_lens, "query rows of each sequence, one number or a list"),
      length_key("kv", &Case::kv_lens, "keys of each sequence, one number or a list"),
      always(integer("hq", &Case::n_q_heads, 1, 4096, "query heads")),
      always(integer("hkv", &Case::n_kv_heads, 1, 4096, "key/value heads; hq is a multiple")),
      always(integer("d", &Case::head_dim, 1, 4096, "head_dim")),
      always(integer("page", &Case::page_size, 1, kLargest, "slots of a page")),
      window_key(),
      flag("causal", &Case::causal, "1 = a row sees no key after its own"),
      scale_key(),
      integer("extent", &Case::extent, 1, kLargest, "rel_extent: distances that have a bias"),
      always(choice("bias", &Case::bias,
                    {{"none", BiasMode::kNone}, {"logits", BiasMode::kLogits}, {"fused", BiasMode::kFused}},
                    "how the bias is given")),
      always(choice("dtype", &Case::dtype, kFloats, "type of q, K, V, out, rel, rel_proj")),
      integer("d_rel", &Case::d_rel, 1, 4096, "inner dimension of the fused bias"),
      flag("rel_scale", &Case::has_rel_scale, "1 = a factor a token for the fused bias"),
      integer("rel_zero", &Case::rel_zero, -kLargest, kLargest, "index of distance 0"),
      choice("edge", &Case::edge, {{"zero", RelEdge::kZero}, {"clamp", RelEdge::kClamp}}, "bias outside the extent"),
      rel_dtype_key(),
      flag("broadcast", &Case::broadcast_logits, "1 = one rel_logits table for all tokens (token stride 0)"),
      integer("splits", &Case::num_splits, 0, kLargest, "num_splits; 0 = automatic"),
      flag("deterministic", &Case::deterministic, "1 = bits do not depend on the neighbours in the batch"),
      integer("max_q", &Case::max_q, -1, kLargest, "max_seqlen_q given to the plan; -1 = the longest sequence"),
      integer("max_kv", &Case::max_kv, -1, kLargest, "max_seqlen_k given to the plan; -1 = the longest sequence"),
      choice("layout", &Case::layout, {{"split", Layout::kSplit}, {"NHD", Layout::kNhd}, {"HND", Layout::kHnd}},
             "K and V apart, or halves of one row, token-major or head-major"),
      choice("lse", &Case::lse, {{"0", LseLayout::kAbsent}, {"1", LseLayout::kTokenMajor}, {"head", LseLayout::kHeadMajor}},
             "absent, token-major or head-major"),
      integer("q_pad", &Case::q_pad, 0, 1 << 20, "elements between tokens of q"),
      integer("out_pad", &Case::out_pad, 0, 1 << 20, "elements between tokens of out"),
      integer("kv_pad", &Case::kv_pad, 0, 1 << 20, "elements between pages"),
      integer("spare_tokens", &Case::spare_tokens, 0, 1 << 20, "rows past the last sequence; must stay untouched"),
      integer("spare_pages", &Case::spare_pages, 0, 1 << 20, "pages that no sequence uses"),
      integer("table_pad", &Case::table_pad, 0, 1 << 20, "garbage block-table entries past the longest sequence"),
      flag("shuffled", &Case::shuffled, "1 = pages in random order"),
      number("gain", &Case::gain, "factor of the bias"),
      choice("content", &Case::content,
             {{"random", Content::kRandom}, {"zeroq", Content::kZeroQ}, {"onehot", Content::kOneHot}},
             "like a real layer; q = 0; or a result that names one key a row"),
      flag("poison", &Case::poison, "1 = NaN in everything that no visible key needs"),
  };
  return all;
}

// One length stands for all sequences.
Status match_lengths(std::int64_t n_seqs, Case& c) {
  const std::size_t longest = std::max(c.q_lens.size(), c.kv_lens.size());
  const auto n = n_seqs >= 0 ? static_cast<std::size_t>(n_seqs) : longest;
  for (auto [name, lengths] : {std::pair{"q", &c.q_lens}, std::pair{"kv", &c.kv_lens}}) {
    if (lengths->size() == 1) lengths->assign(n, lengths->front());
    if (lengths->size() != n)
      return invalid(std::string(name) + ": got " + std::to_string(lengths->size()) + " lengths for " + std::to_string(n) +
                     " sequences, expected 1 or " + std::to_string(n));
  }
  return {};
}

Status check_whole(const Case& c) {
  if (c.n_q_heads % c.n_kv_heads != 0)
    return invalid("hq: got " + std::to_string(c.n_q_heads) + ", expected a multiple of hkv " + std::to_string(c.n_kv_heads));
  if (std::accumulate(c.q_lens.begin(), c.q_lens.end(), std::int64_t{0}) + c.spare_tokens > kLargest)
    return invalid("q: got more than " + std::to_string(kLargest) + " tokens in all");
  for (const auto& [name, bound, lengths] :
       {std::tuple{"max_q", c.max_q, &c.q_lens}, std::tuple{"max_kv", c.max_kv, &c.kv_lens}})
    for (const std::int64_t length : *lengths)
      if (bound >= 0 && length > bound)
        return invalid(std::string(name) + ": got " + std::to_string(bound) + ", expected at least the longest sequence, " +
                       std::to_string(length));
  return {};
}

}  // namespace

std::int64_t Case::n_tokens() const { return std::accumulate(q_lens.begin(), q_lens.end(), spare_tokens); }

Status parse_case(std::string_view line, Case& parsed) {
  parsed = Case{};
  std::int64_t n_seqs = -1;
  std::vector<std::string> seen;
  for (const std::string_view word : split(line, ' ')) {
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const std::string name(word.substr(0, equals));
    if (equals == std::string_view::npos) return invalid("case line: got '" + name + "', expected key=value");
    const std::string_view value = word.substr(equals + 1);
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) return invalid("case line: key '" + name + "' given twice");
    seen.push_back(name);
    if (name == "b") {
      if (!read_in(value, 0, 1 << 24, n_seqs))
        return invalid("b: got '" + std::string(value) + "', expected a number of sequences, 0...16777216");
      continue;
    }
    const auto key = std::find_if(keys().begin(), keys().end(), [&](const Key& k) { return k.name == name; });
    if (key == keys().end()) {
      std::string known = "b";
      for (const Key& k : keys()) known += " " + k.name;
      return invalid("case line: unknown key '" + name + "', expected one of: " + known);
    }
    if (!key->read(value, parsed)) return invalid(name + ": got '" + std::string(value) + "', expected " + key->expected);
  }
  FLASHREL_RETURN_IF_ERROR(match_lengths(n_seqs, parsed));
  return check_whole(parsed);
}

std::string print_case(const Case& c) {
  static const Case kDefault;
  std::string line;
  for (const Key& key : keys()) {
    const std::string value = key.print(c);
    if (value.empty() || (!key.always && value == key.print(kDefault))) continue;
    line += (line.empty() ? "" : " ") + key.name + "=" + value;
    if (key.name == "kv" && c.n_seqs() != 1) line += " b=" + std::to_string(c.n_seqs());
  }
  return line;
}

Status read_case_file(const std::string& path, std::vector<CaseLine>& cases) {
  std::ifstream file(path);
  if (!file) return invalid(path + ": cannot be read");
  return parse_cases(path, {std::istreambuf_iterator<char>(file), {}}, cases);
}

Status parse_cases(const std::string& name, const std::string& text, std::vector<CaseLine>& cases) {
  CaseLine next;
  for (const std::string_view line : split(text, '\n')) {
    ++next.line_number;
    next.text = line.substr(0, line.find('#'));
    next.text.erase(next.text.find_last_not_of(" \t\r") + 1);
    if (next.text.empty()) continue;
    if (Status status = parse_case(next.text, next.parsed); !status.ok())
      return invalid(name + ":" + std::to_string(next.line_number) + ": " + status.text);
    cases.push_back(next);
  }
  return {};
}

std::vector<KeyHelp> case_keys() {
  std::vector<KeyHelp> help = {{"b", "number of sequences; default: as many as lengths are given"}};
  for (const Key& key : keys()) help.push_back({key.name, key.meaning + " (" + key.expected + ")"});
  return help;
}

}  // namespace flashrel::check
