// The command line as a user meets it: every kind of bad input has its sentence, exit code and no output file; golden files
// pass on every CPU instruction set; a wrong result is found and named.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "check/generate.hpp"
#include "check/judge.hpp"
#include "check/problem_file.hpp"
#include "check/safetensors.hpp"

namespace flashrel::check {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;
  std::string out, err;
};

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("flashrel_cli_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  Outcome flashrel(const std::string& arguments, const std::string& environment = "") const {
    const std::string command =
        environment + " '" + FLASHREL_CLI + "' " + arguments + " >" + path("stdout") + " 2>" + path("stderr");
    const int state = std::system(command.c_str());
    return {WIFEXITED(state) ? WEXITSTATUS(state) : 128, read_all(path("stdout")), read_all(path("stderr"))};
  }

  // Runs `arguments` and demands exit 2, one sentence with every one of `words`, and no output file.
  void expect_refused(const std::string& arguments, const std::vector<std::string>& words,
                      const std::string& environment = "") {
    const Outcome outcome = flashrel(arguments + " -o " + path("result"), environment);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const std::string& word : words)
      EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err << "lacks: " << word;
    EXPECT_FALSE(fs::exists(path("result")));
    EXPECT_FALSE(fs::exists(path("result.part")));
  }

  fs::path folder_;
};

using Tensors = std::vector<std::pair<std::string, flashrel_tensor>>;

// A sound problem, as the tensors and metadata of its file; a test breaks one thing.
struct Draft {
  HostProblem host;
  Tensors tensors;
  Metadata metadata;

  explicit Draft(const std::string& line) {
    Case c;
    EXPECT_TRUE(parse_case(line, c).ok()) << line;
    host = generate(c, 1);
    for (const NamedTensor& input : input_tensors())
      if ((host.args.*input.field).rank > 0) tensors.emplace_back(input.name, host.args.*input.field);
  }
  flashrel_tensor& operator[](const std::string& name) {
    for (auto& [key, tensor] : tensors)
      if (key == name) return tensor;
    ADD_FAILURE() << "no tensor " << name;
    return tensors[0].second;
  }
  std::int32_t* ints(const std::string& name) { return static_cast<std::int32_t*>((*this)[name].data); }
  void drop(const std::string& name) {
    std::erase_if(tensors, [&](const auto& t) { return t.first == name; });
  }
};

struct BadProblem {
  const char* what;
  std::function<void(Draft&)> break_it;
  std::vector<std::string> words;  // of the sentence
};

const std::vector<BadProblem>& bad_problems() {
  static const std::vector<BadProblem> all = {
      {"q of the wrong dtype",
       [](Draft& d) { d["q"] = make_tensor(d["q"].data, DType::kInt32, {8, 4, 8}); },
       {"q:", "got dtype int32", "expected bfloat16"}},
      {"k_cache of another dtype",
       [](Draft& d) { d["k_cache"].dtype = FLASHREL_FLOAT16; },
       {"k_cache:", "got dtype float16", "expected bfloat16"}},
      {"lengths that are not int32",
       [](Draft& d) { d["cache_seqlens"].dtype = FLASHREL_FLOAT32; },
       {"cache_seqlens:", "got dtype float32", "expected int32"}},
      {"q of the wrong rank", [](Draft& d) { d["q"].rank = 2; }, {"q:", "got rank 2", "rank 3"}},
      {"k_cache of the wrong rank", [](Draft& d) { d["k_cache"].rank = 3; }, {"k_cache:", "got rank 3", "expected"}},
      {"v_cache with another head_dim",
       [](Draft& d) { d["v_cache"].shape[3] -= 1; },
       {"v_cache:", "got shape", "head_dim = 16"}},
      {"v_cache with fewer pages", [](Draft& d) { d["v_cache"].shape[0] -= 1; }, {"v_cache:", "got shape", "n_pages"}},
      {"cache_seqlens for fewer sequences",
       [](Draft& d) { d["cache_seqlens"].shape[0] -= 1; },
       {"cache_seqlens:", "got shape (1)", "n_seqs = 2"}},
      {"cu_seqlens_q without its end",
       [](Draft& d) { d["cu_seqlens_q"].shape[0] -= 1; },
       {"cu_seqlens_q:", "got shape (2)", "n_seqs + 1 = 3"}},
      {"rel_logits for fewer tokens",
       [](Draft& d) { d["rel_logits"].shape[0] -= 1; },
       {"rel_logits:", "got shape", "n_tokens = 8"}},
      {"a group that is not whole",
       [](Draft& d) { d["q"].shape[1] = d["rel_logits"].shape[1] = 3; },
       {"n_q_heads of q: got 3", "multiple of n_kv_heads = 2"}},
      {"a prefix that starts at -1",
       [](Draft& d) { d.ints("cu_seqlens_q")[0] = -1; },
       {"cu_seqlens_q[0]: got -1", "expected 0"}},
      {"a decreasing prefix", [](Draft& d) { d.ints("cu_seqlens_q")[2] = 2; }, {"cu_seqlens_q[2]: got 2", "at least"}},
      {"a prefix past the tokens", [](Draft& d) { d.ints("cu_seqlens_q")[2] = 9; }, {"cu_seqlens_q[2]: got 9", "n_tokens = 8"}},
      {"a negative kv_len", [](Draft& d) { d.ints("cache_seqlens")[1] = -4; }, {"cache_seqlens[1]: got -4", "0 or more"}},
      {"kv_len past the table", [](Draft& d) { d.ints("cache_seqlens")[1] = 41; }, {"cache_seqlens[1]: got 41", "= 40"}},
      {"a used page out of range", [](Draft& d) { d.ints("block_table")[2] = 11; }, {"block_table[0][2]: got 11", "0 to 10"}},
      {"a used page of -1", [](Draft& d) { d.ints("block_table")[0] = -1; }, {"block_table[0][0]: got -1", "0 to 10"}},
      {"NaN as softmax_scale",
       [](Draft& d) { d.metadata = {{"softmax_scale", "nan"}}; },
       {"softmax_scale: got 'nan'", "finite"}},
      {"infinity as softmax_scale",
       [](Draft& d) { d.metadata = {{"softmax_scale", "inf"}}; },
       {"softmax_scale: got 'inf'", "finite"}},
      {"no number as softmax_scale", [](Draft& d) { d.metadata = {{"softmax_scale", "0.1x"}}; }, {"softmax_scale: got '0.1x'"}},
      {"negative num_splits", [](Draft& d) { d.metadata = {{"num_splits", "-1"}}; }, {"num_splits: got '-1'", "0 or more"}},
      {"an unknown causal", [](Draft& d) { d.metadata = {{"causal", "maybe"}}; }, {"causal: got 'maybe'", "true or false"}},
      {"an unknown rel_edge", [](Draft& d) { d.metadata = {{"rel_edge", "wrap"}}; }, {"rel_edge: got 'wrap'", "zero or clamp"}},
      {"a window below -1", [](Draft& d) { d.metadata = {{"window_left", "-2"}}; }, {"window_left: got '-2'", "-1 or more"}},
      {"a window that is no integer", [](Draft& d) { d.metadata = {{"window_right", "1.5"}}; }, {"window_right: got '1.5'"}},
      {"a huge rel_zero", [](Draft& d) { d.metadata = {{"rel_zero", "99999999999"}}; }, {"rel_zero: got 99999999999"}},
      {"an unknown metadata key", [](Draft& d) { d.metadata = {{"window_lefft", "3"}}; }, {"unknown key 'window_lefft'"}},
      {"kv_layout without kv_cache",
       [](Draft& d) { d.metadata = {{"kv_layout", "NHD"}}; },
       {"kv_layout:", "without a kv_cache"}},
      {"a tensor of another name",
       [](Draft& d) { d.tensors.emplace_back("rel_logit", d["rel_logits"]); },
       {"'rel_logit'", "unknown name"}},
      {"rel_logits and rel together",
       [](Draft& d) { d.tensors.emplace_back("rel", d["rel_logits"]); },
       {"rel_logits:", "one of the two"}},
      {"rel without rel_proj",
       [](Draft& d) {
         d.tensors.emplace_back("rel", d["rel_logits"]);
         d.drop("rel_logits");
       },
       {"rel_proj:", "absent"}},
      {"rel_scale alone",
       [](Draft& d) { d.tensors.emplace_back("rel_scale", make_tensor(d["q"].data, DType::kFloat32, {8})); },
       {"rel_scale:", "without rel"}},
      {"no q", [](Draft& d) { d.drop("q"); }, {"q:", "expected"}},
      {"no block_table", [](Draft& d) { d.drop("block_table"); }, {"block_table:", "absent"}},
      {"an expected out of another shape",
       [](Draft& d) { d.tensors.emplace_back("out", make_tensor(d["q"].data, DType::kFloat32, {2, 4, 16})); },
       {"out:", "disagrees with that of q"}},
      {"an expected out in bfloat16", [](Draft& d) { d.tensors.emplace_back("out", d["q"]); }, {"out:", "bfloat16", "float32"}},
      {"a kv_cache that is no pair of halves",
       [](Draft& d) {
         d.tensors.emplace_back("kv_cache", d["k_cache"]);
         d.drop("k_cache"), d.drop("v_cache");
         d.metadata = {{"kv_layout", "NHD"}};
       },
       {"kv_cache: got last size 16", "2 * head_dim = 32"}},
      {"a kv_cache of unknown layout",
       [](Draft& d) {
         d.tensors.emplace_back("kv_cache", d["k_cache"]);
         d.drop("k_cache"), d.drop("v_cache");
         d.metadata = {{"kv_layout", "DNH"}};
       },
       {"kv_layout: got 'DNH'", "NHD or HND"}},
      {"kv_cache beside k_cache",
       [](Draft& d) { d.tensors.emplace_back("kv_cache", d["k_cache"]); },
       {"kv_cache:", "one of the two"}},
  };
  return all;
}

TEST_F(Cli, EveryKindOfBadProblemHasItsSentence) {
  for (const BadProblem& bad : bad_problems()) {
    SCOPED_TRACE(bad.what);
    // Table of 5 pages of 8 slots; 9 pages used, 2 spare.
    Draft draft("q=3,5 kv=30,40 hq=4 hkv=2 d=16 page=8 extent=6 bias=logits table_pad=0");
    bad.break_it(draft);
    ASSERT_TRUE(write_safetensors(path("bad.safetensors"), draft.tensors, draft.metadata).ok());
    expect_refused("run " + path("bad.safetensors"), bad.words);
    EXPECT_EQ(flashrel("check " + path("bad.safetensors")).code, 2);
  }
}

TEST_F(Cli, BrokenContainersHaveTheirSentence) {
  const Draft draft("q=3 kv=30 hq=4 hkv=2 d=16 page=8 extent=6 bias=logits");
  ASSERT_TRUE(write_safetensors(path("good.safetensors"), draft.tensors, {}).ok());
  const std::string good = read_all(path("good.safetensors"));
  ASSERT_EQ(flashrel("run " + path("good.safetensors") + " -o " + path("fine")).code, 0);
  ASSERT_TRUE(fs::exists(path("fine")));
  const auto refuse = [&](const std::string& bytes, const std::vector<std::string>& words) {
    std::ofstream(path("bad.safetensors"), std::ios::binary) << bytes;
    expect_refused("run " + path("bad.safetensors"), words);
  };
  const auto with_header = [&](const std::function<void(nlohmann::ordered_json&)>& change) {
    const std::size_t n = static_cast<unsigned char>(good[0]) + 256u * static_cast<unsigned char>(good[1]);
    auto header = nlohmann::ordered_json::parse(good.substr(8, n));
    change(header);
    const std::string text = header.dump();
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(text.size() & 0xff), bytes[1] = static_cast<char>(text.size() >> 8);
    return bytes + text + good.substr(8 + n);
  };

  for (const std::size_t keep :
       {std::size_t{0}, std::size_t{5}, std::size_t{8}, std::size_t{100}, good.size() / 2, good.size() - 1})
    refuse(good.substr(0, keep), {keep < 8 ? "expected at least the 8" : "truncated"});
  refuse(good + "x", {"expected", "where the last tensor ends"});
  refuse(std::string(8, '\xff') + good.substr(8), {"header length: got 18446744073709551615", "at most"});
  refuse(with_header([](auto& h) { h["v_cache"]["data_offsets"] = h["k_cache"]["data_offsets"]; }),
         {"tensor 'v_cache'", "overlaps"});
  refuse(with_header([](auto& h) { h["q"]["dtype"] = "F8_E4M3"; }),
         {"tensor 'q'", "F8_E4M3", "expected F32, F16, BF16 or I32"});
  refuse(with_header([](auto& h) { h["q"]["shape"][0] = 4; }), {"tensor 'q'", "bytes of data, expected"});
  refuse(with_header([](auto& h) { h["q"]["shape"][0] = -3; }), {"tensor 'q'", "expected a shape"});
  refuse(with_header([](auto& h) { h["__metadata__"]["causal"] = true; }),
         {"__metadata__.causal: got true", "expected a text"});
  refuse("PK\x03\x04 this is something else entirely", {"header"});
  expect_refused("run " + path("absent.safetensors"), {"absent.safetensors: cannot be read"});
}

TEST_F(Cli, BadArgumentsExitWithTwo) {
  expect_refused("make q=3 kv=9 colour=red", {"unknown key 'colour'"});
  expect_refused("make q=3 kv=9 page=0", {"page: got '0'"});
  expect_refused("make q=3 kv=9 d=513", {"head_dim of q: got 513", "1 to 512"});
  const Draft draft("q=3 kv=30 hq=4 hkv=2 d=16 page=8 extent=6 bias=logits");
  ASSERT_TRUE(write_safetensors(path("good.safetensors"), draft.tensors, {}).ok());
  expect_refused("run " + path("good.safetensors") + " --backend warp", {"backend: got 'warp'", "cpu"});
  expect_refused("run " + path("good.safetensors") + " --route fused", {"route: got fused with bias mode logits"});
  expect_refused("run " + path("good.safetensors"), {"FLASHREL_CPU_ISA", "sse9"}, "FLASHREL_CPU_ISA=sse9");
  for (const std::string arguments : {"", "frobnicate", "run", "run x.safetensors -o y --num-splits -1",
                                      "plan q=1 kv=9 --device sm42", "bench --case q=1 kv=-9", "verify --cases /does/not/exist",
                                      "check", "check --case q=1 kv=9 --backend warp", "plan q=1 kv=9 --seq 7"}) {
    const Outcome outcome = flashrel(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << outcome.out;
    EXPECT_FALSE(outcome.err.empty()) << arguments;
  }
  EXPECT_EQ(flashrel("--help").code, 0);
  EXPECT_EQ(flashrel("run " + path("good.safetensors") + " -o /does/not/exist/r.safetensors").code, 1) << "the disk's fault";
}

TEST_F(Cli, ResultFilesHoldTheDefinition) {
  ASSERT_EQ(flashrel("make q=5,3 kv=70,40 hq=4 hkv=2 d=32 page=16 extent=24 spare_tokens=2 rel_scale=1 --seed 9 -o " +
                     path("p.safetensors"))
                .code,
            0);
  ASSERT_EQ(flashrel("run " + path("p.safetensors") + " -o " + path("r.safetensors") + " --num-splits 3").code, 0);
  HostProblem host;
  TensorFile file;
  Reference reference;
  ASSERT_TRUE(read_problem(path("p.safetensors"), host).ok());
  ASSERT_TRUE(make_reference(host, 0, reference).ok());
  ASSERT_TRUE(read_safetensors(path("r.safetensors"), file).ok());
  const FileTensor *out = file.find("out"), *lse = file.find("lse");
  ASSERT_NE(out, nullptr);
  ASSERT_NE(lse, nullptr);
  EXPECT_EQ(out->shape, (std::vector<std::int64_t>{10, 4, 32}));
  EXPECT_EQ(lse->shape, (std::vector<std::int64_t>{10, 4}));
  RunResult result;
  result.out.resize(10 * 4 * 32);
  result.lse.resize(10 * 4);
  std::memcpy(result.out.data(), file.data.data() + out->begin, out->end - out->begin);
  std::memcpy(result.lse.data(), file.data.data() + lse->begin, lse->end - lse->begin);
  const Verdict verdict = judge(host, reference, result);
  EXPECT_TRUE(verdict.passed) << verdict.text;
  for (std::size_t i = 8 * 4 * 32; i < result.out.size(); ++i) EXPECT_EQ(result.out[i], 0.0f);
}

TEST_F(Cli, AWrongResultExitsWithOneAndIsNamed) {
  ASSERT_EQ(flashrel("make q=5 kv=70 hq=4 hkv=2 d=32 page=16 extent=24 --expected -o " + path("p.safetensors")).code, 0);
  EXPECT_EQ(flashrel("check " + path("p.safetensors")).code, 0);
  HostProblem host;
  ASSERT_TRUE(read_problem(path("p.safetensors"), host).ok());
  host.expected_out[(3 * 4 + 2) * 32 + 17] += 0.5f;
  ASSERT_TRUE(write_problem(path("w.safetensors"), host).ok());
  const Outcome outcome = flashrel("check " + path("w.safetensors"));
  EXPECT_EQ(outcome.code, 1);
  for (const char* word :
       {"WRONG", "case: q=5 kv=70", "seed: 1", "1 of 20 rows wrong", "row 3 of 5", "head 2", "column 17", "got", "expected"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out << "lacks: " << word;
}

TEST_F(Cli, GoldenFilesPassOnEveryInstructionSet) {
  const Outcome outcome = flashrel("check --all-isas --backend cpu '" FLASHREL_GOLDEN "'/*.safetensors");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  int n_ran = 0, n_twelve = 0;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("== ", 0) == 0) std::puts(line.c_str());
    n_ran += line.rfind("== ", 0) == 0 && line.find("skipped") == std::string::npos;
    n_twelve += line == "12 passed, 0 failed, 0 skipped";
  }
  EXPECT_GE(n_ran, 1);
  EXPECT_EQ(n_twelve, n_ran);
}

TEST_F(Cli, QuickMatrixPassesOnEveryInstructionSet) {
  const Outcome outcome = flashrel("verify --quick --backend cpu --all-isas");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("12 passed, 0 failed, 0 skipped"), std::string::npos) << outcome.out;
}

TEST_F(Cli, PlansAreDrawn) {
  const Outcome outcome = flashrel("plan q=300 kv=3000 window=900 extent=512 --device cpu --svg " + path("map.svg"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* word : {"backend    cpu", "route fused", "workspace", "schedule", "bound", "biased and masked"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  const std::string svg = read_all(path("map.svg"));
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  const Outcome json = flashrel("plan q=1 kv=131072 --device cpu --json");
  ASSERT_EQ(json.code, 0);
  EXPECT_EQ(nlohmann::json::parse(json.out)["backend"], "cpu");
}

TEST_F(Cli, InfoAndBenchSpeakJson) {
  const Outcome info = flashrel("info --json");
  ASSERT_EQ(info.code, 0);
  EXPECT_TRUE(nlohmann::json::parse(info.out).contains("backends"));
  EXPECT_NE(flashrel("info").out.find("instruction set"), std::string::npos);
  const Outcome bench =
      flashrel("bench --backend cpu --case q=4 kv=300 --seconds 0.02 --json " + path("b.json") + " --svg " + path("b.svg"));
  ASSERT_EQ(bench.code, 0) << bench.out << bench.err;
  const auto report = nlohmann::json::parse(read_all(path("b.json")));
  ASSERT_EQ(report["figures"].size(), 1u);
  EXPECT_TRUE(report["figures"][0]["correct"]);
  EXPECT_GT(report["figures"][0]["median_us"], 0);
  EXPECT_GT(report["cpu"]["read_gb_per_s"], 0);
  EXPECT_NE(read_all(path("b.svg")).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace flashrel::check
