#include "check/safetensors.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "index/distance.hpp"

namespace flashrel::check {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;
constexpr std::uint64_t kMaxHeaderBytes = 16 << 20;  // a problem file has a dozen tensors

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {
    {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}, {"I32", DType::kInt32}};

std::string quoted(const std::string& name) { return "tensor '" + name + "'"; }

// JSON keeps the last of two equal keys silently; here they are an error.
Status parse_json(std::string_view text, Json& header) {
  std::vector<std::set<std::string>> open_objects;
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  header = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) return invalid("header: got text that is not a JSON object");
  if (!twice.empty()) return invalid("header: name '" + twice + "' given twice");
  return {};
}

bool read_sizes(const Json& list, std::vector<std::uint64_t>& sizes) {
  if (!list.is_array()) return false;
  for (const Json& item : list) {
    if (!item.is_number_unsigned()) return false;
    sizes.push_back(item.get<std::uint64_t>());
  }
  return true;
}

Status read_metadata(const Json& entry, TensorFile& file) {
  if (!entry.is_object()) return invalid("__metadata__: expected an object of texts");
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) return invalid("__metadata__." + key + ": got " + value.dump() + ", expected a text");
    file.metadata[key] = value.get<std::string>();
  }
  return {};
}

Status read_entry(const std::string& name, const Json& entry, FileTensor& tensor) {
  tensor.name = name;
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    return invalid(quoted(name) + ": expected an object with dtype, shape and data_offsets");

  const Json& dtype = entry["dtype"];
  const auto known = std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeName& d) { return dtype == d.name; });
  if (known == std::end(kDTypes))
    return invalid(quoted(name) + ": got dtype " + dtype.dump(-1, ' ', true, Json::error_handler_t::replace) +
                   ", expected F32, F16, BF16 or I32");
  tensor.dtype = known->dtype;

  std::vector<std::uint64_t> shape, offsets;
  if (!read_sizes(entry["shape"], shape) || shape.size() > FLASHREL_MAX_RANK)
    return invalid(quoted(name) + ": expected a shape of at most " + std::to_string(FLASHREL_MAX_RANK) + " sizes");
  std::uint64_t bytes = size_of(tensor.dtype), stride = 1;  // strides of a shape with a zero must be numbers too
  for (const std::uint64_t size : shape) {
    if (size >= kMaxLength) return invalid(quoted(name) + ": got size " + std::to_string(size) + ", expected less than 2^30");
    tensor.shape.push_back(static_cast<std::int64_t>(size));
    stride *= std::max<std::uint64_t>(1, size);
    if (stride >= kMaxElements) return invalid(quoted(name) + ": its shape has more than 2^48 elements");
    bytes *= size;
  }
  if (!read_sizes(entry["data_offsets"], offsets) || offsets.size() != 2 || offsets[0] > offsets[1])
    return invalid(quoted(name) + ": expected data_offsets [begin, end] with begin <= end");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.end - tensor.begin != bytes)
    return invalid(quoted(name) + ": got " + std::to_string(tensor.end - tensor.begin) + " bytes of data, expected " +
                   std::to_string(bytes) + " for its shape and dtype");
  return {};
}

// Tensors follow one another and fill the data.
Status check_cover(TensorFile& file, std::uint64_t data_bytes) {
  std::stable_sort(file.tensors.begin(), file.tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  const FileTensor* previous = nullptr;
  for (const FileTensor& tensor : file.tensors) {
    if (tensor.begin < covered)
      return invalid(quoted(tensor.name) + ": starts at byte " + std::to_string(tensor.begin) + " and overlaps " +
                     quoted(previous->name) + ", which ends at " + std::to_string(covered));
    if (tensor.begin > covered)
      return invalid(quoted(tensor.name) + ": starts at byte " + std::to_string(tensor.begin) + ", expected " +
                     std::to_string(covered) + ", where the data before it ends");
    if (tensor.end > data_bytes)
      return invalid(quoted(tensor.name) + ": ends at byte " + std::to_string(tensor.end) +
                     ", but the file is truncated: it has " + std::to_string(data_bytes) + " bytes of data");
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_bytes)
    return invalid("data: got " + std::to_string(data_bytes) + " bytes, expected " + std::to_string(covered) +
                   ", where the last tensor ends");
  return {};
}

Status parse_header(std::string_view text, std::uint64_t data_bytes, TensorFile& file) {
  Json header;
  FLASHREL_RETURN_IF_ERROR(parse_json(text, header));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      FLASHREL_RETURN_IF_ERROR(read_metadata(entry, file));
      continue;
    }
    FLASHREL_RETURN_IF_ERROR(read_entry(name, entry, file.tensors.emplace_back()));
  }
  return check_cover(file, data_bytes);
}

// Length of the header from the file's first bytes.
Status read_header_bytes(const unsigned char* bytes, std::uint64_t file_bytes, std::uint64_t& header_bytes) {
  if (file_bytes < kLengthBytes)
    return invalid("file: got " + std::to_string(file_bytes) +
                   " bytes, expected at least the 8 of a safetensors header length");
  header_bytes = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) header_bytes |= std::uint64_t{bytes[i]} << (8 * i);
  if (header_bytes > kMaxHeaderBytes)
    return invalid("header length: got " + std::to_string(header_bytes) + " bytes, expected at most " +
                   std::to_string(kMaxHeaderBytes));
  if (header_bytes > file_bytes - kLengthBytes)
    return invalid("header length: got " + std::to_string(header_bytes) + " bytes, but the file is truncated: it has " +
                   std::to_string(file_bytes - kLengthBytes) + " after the length");
  return {};
}

template <class T>
void write_dense(std::ostream& out, const flashrel_tensor& t) {
  // The innermost run is written at once; absent leading dimensions count as one.
  const auto* data = static_cast<const T*>(t.data);
  std::int64_t shape[FLASHREL_MAX_RANK], stride[FLASHREL_MAX_RANK];
  const int lead = FLASHREL_MAX_RANK - t.rank;
  for (int i = 0; i < FLASHREL_MAX_RANK; ++i)
    shape[i] = i < lead ? 1 : t.shape[i - lead], stride[i] = i < lead ? 0 : t.stride[i - lead];
  std::vector<T> row(static_cast<std::size_t>(shape[3]));
  for (std::int64_t a = 0; a < shape[0]; ++a)
    for (std::int64_t b = 0; b < shape[1]; ++b)
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        for (std::int64_t d = 0; d < shape[3]; ++d)
          row[static_cast<std::size_t>(d)] = data[a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]];
        out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * sizeof(T)));
      }
}

Json header_of(const std::vector<std::pair<std::string, flashrel_tensor>>& tensors, const Metadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = Json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto dtype = static_cast<DType>(tensor.dtype);
    const std::uint64_t bytes = static_cast<std::uint64_t>(count_of(tensor)) * size_of(dtype);
    const auto known =
        std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeName& d) { return d.dtype == dtype; });
    header[name] = {{"dtype", known->name},
                    {"shape", std::vector<std::int64_t>(tensor.shape, tensor.shape + tensor.rank)},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  return header;
}

}  // namespace

const FileTensor* TensorFile::find(std::string_view name) const {
  for (const FileTensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Status parse_safetensors(std::span<const std::byte> bytes, TensorFile& file) {
  std::uint64_t header_bytes = 0;
  const auto* start = reinterpret_cast<const unsigned char*>(bytes.data());
  FLASHREL_RETURN_IF_ERROR(read_header_bytes(start, bytes.size(), header_bytes));
  const auto data = bytes.subspan(kLengthBytes + header_bytes);
  file = TensorFile{};
  FLASHREL_RETURN_IF_ERROR(
      parse_header({reinterpret_cast<const char*>(start) + kLengthBytes, header_bytes}, data.size(), file));
  file.data = Buffer(data.size());
  if (!data.empty()) std::memcpy(file.data.data(), data.data(), data.size());
  return {};
}

Status read_safetensors(const std::string& path, TensorFile& file) {
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) return invalid(path + ": cannot be read");
  const auto read = [&](void* to, std::uint64_t n) { in.read(static_cast<char*>(to), static_cast<std::streamsize>(n)); };

  unsigned char length[kLengthBytes] = {};
  read(length, std::min<std::uint64_t>(kLengthBytes, file_bytes));
  std::uint64_t header_bytes = 0;
  Status status = read_header_bytes(length, file_bytes, header_bytes);
  if (status.ok()) {
    std::string header(header_bytes, ' ');
    read(header.data(), header_bytes);
    file = TensorFile{};
    status = parse_header(header, file_bytes - kLengthBytes - header_bytes, file);
  }
  if (status.ok()) {
    file.data = Buffer(file_bytes - kLengthBytes - header_bytes);
    read(file.data.data(), file.data.bytes());
    if (!in) status = invalid("reading stopped before the file's end");
  }
  if (!status.ok()) status.text = path + ": " + status.text;
  return status;
}

Status write_safetensors(const std::string& path, const std::vector<std::pair<std::string, flashrel_tensor>>& tensors,
                         const Metadata& metadata) {
  const std::string part = path + ".part";
  std::string header = header_of(tensors, metadata).dump();
  header.resize(round_up(header.size(), kLengthBytes), ' ');  // keeps the data 8-byte aligned
  std::ofstream out(part, std::ios::binary);
  for (std::size_t i = 0; i < kLengthBytes; ++i) out.put(static_cast<char>((header.size() >> (8 * i)) & 0xff));
  out << header;
  for (const auto& [name, tensor] : tensors) {
    if (size_of(static_cast<DType>(tensor.dtype)) == 2)
      write_dense<std::uint16_t>(out, tensor);
    else
      write_dense<std::uint32_t>(out, tensor);
  }
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(part, path, error);
  if (!out || error) {
    std::filesystem::remove(part, error);
    return {Code::kRuntime, path + ": cannot be written"};
  }
  return {};
}

}  // namespace flashrel::check
