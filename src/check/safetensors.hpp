// Reader and writer of .safetensors files, strict: what the format forbids is an error, not a guess.
//
//   8 bytes header length N, little endian | N bytes JSON header | data
//   header: {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end)}, ..., "__metadata__": {"key": "text"}}
//
// Offsets count from the start of the data; tensors cover the data without holes or overlap.
// Source: the format's description in the safetensors project (README, "Format").
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "check/host_problem.hpp"

namespace flashrel::check {

struct FileTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  // bytes of the data
};

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<FileTensor> tensors;  // in the order of their data
  Buffer data{0};

  const FileTensor* find(std::string_view name) const;
};

Status read_safetensors(const std::string& path, TensorFile& file);
// The same from memory; the fuzzer's entry.
Status parse_safetensors(std::span<const std::byte> bytes, TensorFile& file);

// Writes to a temporary name beside `path` and renames it, so that a failed run leaves no file. Strided tensors are written
// densely.
using Metadata = std::vector<std::pair<std::string, std::string>>;
Status write_safetensors(const std::string& path, const std::vector<std::pair<std::string, flashrel_tensor>>& tensors,
                         const Metadata& metadata);

}  // namespace flashrel::check
