// The reader of problem files, kind of fault by kind of fault; tests/cli runs the same kinds through the command line.
#include "check/problem_file.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "check/generate.hpp"
#include "core/definition.hpp"

namespace flashrel::check {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>((header.size() >> (8 * i)) & 0xff);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string sentence(const std::string& header, std::size_t data_bytes) {
  TensorFile file;
  return parse_safetensors(file_of(header, data_bytes), file).text;
}

TEST(Safetensors, SoundFileIsRead) {
  TensorFile file;
  const std::string header =
      R"({"__metadata__":{"a":"b"},"y":{"dtype":"I32","shape":[],"data_offsets":[12,16]},"x":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}  )";
  ASSERT_TRUE(parse_safetensors(file_of(header, 16), file).ok());
  EXPECT_EQ(file.metadata.at("a"), "b");
  EXPECT_EQ(file.find("x")->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.find("y")->begin, 12u);
  EXPECT_EQ(file.find("z"), nullptr);
}

TEST(Safetensors, EveryFaultHasItsSentence) {
  TensorFile file;
  EXPECT_EQ(parse_safetensors({}, file).text, "file: got 0 bytes, expected at least the 8 of a safetensors header length");
  std::vector<std::byte> absurd(20, std::byte{0xff});
  EXPECT_EQ(parse_safetensors(absurd, file).text, "header length: got 18446744073709551615 bytes, expected at most 16777216");
  std::vector<std::byte> cut = file_of("{}", 0);
  cut.pop_back();
  EXPECT_EQ(parse_safetensors(cut, file).text,
            "header length: got 2 bytes, but the file is truncated: it has 1 after the length");
  EXPECT_EQ(sentence("{", 0), "header: got text that is not a JSON object");
  EXPECT_EQ(sentence("[1]", 0), "header: got text that is not a JSON object");

  const auto x = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"("x":{"dtype":)") + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::string good = x(R"("F32")", "[2]", "[0,8]");
  EXPECT_EQ(sentence("{" + good + "}", 4), "tensor 'x': ends at byte 8, but the file is truncated: it has 4 bytes of data");
  EXPECT_EQ(sentence("{" + good + "}", 9), "data: got 9 bytes, expected 8, where the last tensor ends");
  EXPECT_EQ(sentence("{" + good + "," + good + "}", 8), "header: name 'x' given twice");
  EXPECT_EQ(sentence("{" + good + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
            "tensor 'y': starts at byte 4 and overlaps tensor 'x', which ends at 8");
  EXPECT_EQ(sentence("{" + good + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16),
            "tensor 'y': starts at byte 12, expected 8, where the data before it ends");
  EXPECT_EQ(sentence("{" + x(R"("F32")", "[2]", "[0,4]") + "}", 4),
            "tensor 'x': got 4 bytes of data, expected 8 for its shape and dtype");
  EXPECT_EQ(sentence("{" + x(R"("F64")", "[2]", "[0,16]") + "}", 16),
            "tensor 'x': got dtype \"F64\", expected F32, F16, BF16 or I32");
  EXPECT_EQ(sentence("{" + x("7", "[2]", "[0,8]") + "}", 8), "tensor 'x': got dtype 7, expected F32, F16, BF16 or I32");
  EXPECT_EQ(sentence("{" + x(R"("F32")", "[-2]", "[0,8]") + "}", 8), "tensor 'x': expected a shape of at most 4 sizes");
  EXPECT_EQ(sentence("{" + x(R"("F32")", "[1,1,1,1,2]", "[0,8]") + "}", 8), "tensor 'x': expected a shape of at most 4 sizes");
  EXPECT_EQ(sentence("{" + x(R"("F32")", "[1073741824]", "[0,8]") + "}", 8),
            "tensor 'x': got size 1073741824, expected less than 2^30");
  EXPECT_EQ(sentence("{" + x(R"("F32")", "[0,1073741823,1073741823]", "[0,0]") + "}", 0),
            "tensor 'x': its shape has more than 2^48 elements");
  EXPECT_EQ(sentence("{" + x(R"("F32")", "[2]", "[8,0]") + "}", 8),
            "tensor 'x': expected data_offsets [begin, end] with begin <= end");
  EXPECT_EQ(sentence(R"({"x":{"dtype":"F32"}})", 0), "tensor 'x': expected an object with dtype, shape and data_offsets");
  EXPECT_EQ(sentence(R"({"__metadata__":{"a":1}})", 0), "__metadata__.a: got 1, expected a text");
}

// A problem survives the trip through a file, whatever its layout.
TEST(ProblemFile, RoundTrip) {
  const std::string path = testing::TempDir() + "flashrel_round_trip.safetensors";
  for (const char* line :
       {"q=3,0,2 kv=20,5,9 hq=4 hkv=2 d=8 page=4 extent=6 rel_scale=1 q_pad=3 kv_pad=5",
        "q=3 kv=20 hq=4 hkv=2 d=8 page=4 extent=6 bias=logits layout=NHD rel_zero=2 causal=0 window=5:3 splits=3",
        "q=3 kv=20 hq=4 hkv=2 d=7 page=3 layout=HND bias=none edge=clamp dtype=fp16 scale=0.3",
        "q=3 kv=20 b=1 hq=1 hkv=1 d=3 page=1 extent=5 bias=logits broadcast=1 rel_dtype=fp32"}) {
    Case c;
    ASSERT_TRUE(parse_case(line, c).ok());
    const HostProblem written = generate(c, 5);
    ASSERT_TRUE(write_problem(path, written).ok());
    HostProblem read;
    const Status status = read_problem(path, read);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_EQ(read.label, print_case(c));
    EXPECT_EQ(read.seed, 5u);
    Call a, b;
    ASSERT_TRUE(describe(written, a).ok());
    ASSERT_TRUE(describe(read, b).ok());
    const Truth x = define(a.problem, a.tensors), y = define(b.problem, b.tensors);
    EXPECT_EQ(x.out, y.out) << line;
    EXPECT_EQ(x.lse, y.lse) << line;
    EXPECT_EQ(read.args.num_splits, written.args.num_splits);
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace flashrel::check
