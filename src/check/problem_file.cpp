#include "check/problem_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "index/distance.hpp"

namespace flashrel::check {
namespace {

// Parses all of `text` as a number.
template <class T>
bool parse_all(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

class ProblemReader {
 public:
  ProblemReader(TensorFile& file, HostProblem& host) : file_(file), args_(host.args), host_(host) {}

  Status run() {
    FLASHREL_RETURN_IF_ERROR(check_names());
    FLASHREL_RETURN_IF_ERROR(read_tensors());
    FLASHREL_RETURN_IF_ERROR(read_metadata());
    FLASHREL_RETURN_IF_ERROR(read_expected("out", 3, host_.expected_out));
    FLASHREL_RETURN_IF_ERROR(read_expected("lse", 2, host_.expected_lse));
    host_.inputs.push_back(std::move(file_.data));
    // Shapes must be sound before memory is taken for the outputs.
    static std::byte placeholder;
    args_.out =
        make_tensor(&placeholder, static_cast<DType>(args_.q.dtype), {args_.q.shape[0], args_.q.shape[1], args_.q.shape[2]});
    Call call;
    FLASHREL_RETURN_IF_ERROR(describe(host_, call));
    host_.add_outputs(args_.q.shape[1] * args_.q.shape[2], true, false);
    return {};
  }

 private:
  Status check_names() const {
    for (const FileTensor& tensor : file_.tensors) {
      const bool known = tensor.name == "kv_cache" || tensor.name == "out" || tensor.name == "lse" ||
                         std::any_of(input_tensors().begin(), input_tensors().end(),
                                     [&](const NamedTensor& input) { return tensor.name == input.name; });
      if (!known) return invalid("tensor '" + tensor.name + "': unknown name in a problem file");
    }
    return {};
  }

  // A view into the file's data; a copy when its place there is not aligned as an allocation would be.
  flashrel_tensor view(const FileTensor& tensor) {
    std::byte* data = file_.data.data() + tensor.begin;
    if (tensor.begin % 16 != 0) {
      data = host_.add_input(tensor.end - tensor.begin);
      std::memcpy(data, file_.data.data() + tensor.begin, tensor.end - tensor.begin);
    }
    flashrel_tensor result{};
    result.data = data;
    result.dtype = static_cast<std::int32_t>(tensor.dtype);
    result.rank = static_cast<std::int32_t>(tensor.shape.size());
    std::int64_t stride = 1;
    for (int i = result.rank - 1; i >= 0; --i) {
      result.shape[i] = tensor.shape[static_cast<std::size_t>(i)];
      result.stride[i] = stride;
      stride *= std::max<std::int64_t>(1, result.shape[i]);
    }
    return result;
  }

  Status read_tensors() {
    for (const NamedTensor& input : input_tensors())
      if (const FileTensor* tensor = file_.find(input.name)) args_.*input.field = view(*tensor);
    if (args_.q.rank != 3) return invalid("q: got rank " + std::to_string(args_.q.rank) + ", expected a tensor of rank 3");
    return read_packed();
  }

  // One tensor of 2 * head_dim rows instead of k_cache and v_cache.
  Status read_packed() {
    const FileTensor* packed = file_.find("kv_cache");
    const auto layout = file_.metadata.find("kv_layout");
    if (packed == nullptr)
      return layout == file_.metadata.end() ? Status{} : invalid("kv_layout: given without a kv_cache tensor");
    if (args_.k_cache.rank > 0 || args_.v_cache.rank > 0)
      return invalid("kv_cache: given together with k_cache or v_cache, expected one of the two");
    if (layout == file_.metadata.end() || (layout->second != "NHD" && layout->second != "HND"))
      return invalid("kv_layout: got '" + (layout == file_.metadata.end() ? "" : layout->second) + "', expected NHD or HND");
    if (packed->shape.size() != 4)
      return invalid("kv_cache: got rank " + std::to_string(packed->shape.size()) + ", expected rank 4");
    const std::int64_t head_dim = args_.q.shape[2];
    if (packed->shape[3] != 2 * head_dim)
      return invalid("kv_cache: got last size " + std::to_string(packed->shape[3]) +
                     ", expected 2 * head_dim = " + std::to_string(2 * head_dim));
    flashrel_tensor half = view(*packed);
    half.shape[3] = head_dim;
    host_.kv_layout = layout->second;
    if (host_.kv_layout == "HND") {
      std::swap(half.shape[1], half.shape[2]);
      std::swap(half.stride[1], half.stride[2]);
    }
    args_.k_cache = args_.v_cache = half;
    args_.v_cache.data = static_cast<std::byte*>(half.data) + static_cast<std::size_t>(head_dim) * size_of(packed->dtype);
    return {};
  }

  // Calls parse on the value of `key` when it is there.
  template <class Parse>
  Status read_value(const char* key, const char* expected, Parse&& parse) {
    const auto entry = file_.metadata.find(key);
    if (entry == file_.metadata.end() || parse(entry->second)) return {};
    return invalid(std::string(key) + ": got '" + entry->second + "', expected " + expected);
  }

  Status read_metadata() {
    static const char* const kKnown[] = {"softmax_scale", "causal",    "window_left", "window_right", "rel_zero", "rel_edge",
                                         "num_splits",    "kv_layout", "case",        "seed",         "format"};
    for (const auto& [key, value] : file_.metadata)
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
        return invalid("__metadata__: unknown key '" + key + "'");

    args_.softmax_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(1, args_.q.shape[2]));
    FLASHREL_RETURN_IF_ERROR(read_value("softmax_scale", "a finite number", [&](const std::string& text) {
      return parse_all(text, args_.softmax_scale) && std::isfinite(args_.softmax_scale);
    }));
    FLASHREL_RETURN_IF_ERROR(read_value("causal", "true or false", [&](const std::string& text) {
      args_.causal = text == "true";
      return text == "true" || text == "false";
    }));
    FLASHREL_RETURN_IF_ERROR(read_value("rel_edge", "zero or clamp", [&](const std::string& text) {
      args_.rel_edge = text == "clamp" ? FLASHREL_EDGE_CLAMP : FLASHREL_EDGE_ZERO;
      return text == "clamp" || text == "zero";
    }));
    const auto at_least = [](std::int64_t low, auto& field) {
      return [low, &field](const std::string& text) { return parse_all(text, field) && field >= low; };
    };
    FLASHREL_RETURN_IF_ERROR(read_value("window_left", "-1 or more", at_least(-1, args_.window_left)));
    FLASHREL_RETURN_IF_ERROR(read_value("window_right", "-1 or more", at_least(-1, args_.window_right)));
    FLASHREL_RETURN_IF_ERROR(read_value("rel_zero", "an integer", at_least(-kFar, args_.rel_zero)));
    FLASHREL_RETURN_IF_ERROR(read_value("num_splits", "0 or more", at_least(0, args_.num_splits)));
    FLASHREL_RETURN_IF_ERROR(read_value("case", "", [&](const std::string& text) {
      host_.label = text;
      return true;
    }));
    return read_value("seed", "0 or more", [&](const std::string& text) { return parse_all(text, host_.seed); });
  }

  Status read_expected(const char* name, std::size_t rank, std::vector<float>& values) {
    const FileTensor* tensor = file_.find(name);
    if (tensor == nullptr) return {};
    if (tensor->dtype != DType::kFloat32)
      return invalid(std::string(name) + ": got dtype " + name_of(tensor->dtype) + ", expected float32, the expected result");
    if (tensor->shape.size() != rank || !std::equal(tensor->shape.begin(), tensor->shape.end(), args_.q.shape))
      return invalid(std::string(name) + ": its shape disagrees with that of q");
    values.resize((tensor->end - tensor->begin) / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), file_.data.data() + tensor->begin, tensor->end - tensor->begin);
    return {};
  }

  TensorFile& file_;
  flashrel_attention_args& args_;
  HostProblem& host_;
};

std::string print_number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

Metadata metadata_of(const HostProblem& host) {
  const flashrel_attention_args& a = host.args;
  Metadata metadata = {{"case", host.label},
                       {"seed", std::to_string(host.seed)},
                       {"softmax_scale", print_number(a.softmax_scale)},
                       {"causal", a.causal ? "true" : "false"},
                       {"window_left", std::to_string(a.window_left)},
                       {"window_right", std::to_string(a.window_right)},
                       {"rel_zero", std::to_string(a.rel_zero)},
                       {"rel_edge", a.rel_edge == FLASHREL_EDGE_CLAMP ? "clamp" : "zero"},
                       {"num_splits", std::to_string(a.num_splits)}};
  if (!host.kv_layout.empty()) metadata.emplace_back("kv_layout", host.kv_layout);
  return metadata;
}

// K and V as the one tensor of which they are halves.
flashrel_tensor packed_view(const HostProblem& host) {
  flashrel_tensor packed = host.args.k_cache;
  packed.shape[3] *= 2;
  packed.stride[3] = 1;
  if (host.kv_layout == "HND") {
    std::swap(packed.shape[1], packed.shape[2]);
    std::swap(packed.stride[1], packed.stride[2]);
  }
  return packed;
}

flashrel_tensor result_view(std::vector<float>& values, flashrel_tensor like) {
  flashrel_tensor view = make_tensor(values.data(), DType::kFloat32, {like.shape[0], like.shape[1], like.shape[2]});
  view.rank = like.rank;
  if (like.rank == 2) view.stride[0] = like.shape[1], view.stride[1] = 1;
  return view;
}

}  // namespace

Status parse_problem(std::span<const std::byte> bytes, HostProblem& host) {
  TensorFile file;
  FLASHREL_RETURN_IF_ERROR(parse_safetensors(bytes, file));
  host = HostProblem{};
  return ProblemReader(file, host).run();
}

Status read_problem(const std::string& path, HostProblem& host) {
  TensorFile file;
  FLASHREL_RETURN_IF_ERROR(read_safetensors(path, file));
  host = HostProblem{};
  Status status = ProblemReader(file, host).run();
  if (!status.ok()) status.text = path + ": " + status.text;
  if (host.label.empty()) host.label = path;
  return status;
}

Status write_problem(const std::string& path, const HostProblem& host) {
  std::vector<std::pair<std::string, flashrel_tensor>> tensors;
  for (const NamedTensor& input : input_tensors()) {
    const flashrel_tensor& tensor = host.args.*input.field;
    const std::string name = input.name;
    if (tensor.rank == 0) continue;
    if (host.kv_layout.empty())
      tensors.emplace_back(name, tensor);
    else if (name == "k_cache")
      tensors.emplace_back("kv_cache", packed_view(host));
    else if (name != "v_cache")
      tensors.emplace_back(name, tensor);
  }
  FileResult expected{host.expected_out, host.expected_lse};
  if (!expected.out.empty()) tensors.emplace_back("out", result_view(expected.out, host.args.out));
  if (!expected.lse.empty()) tensors.emplace_back("lse", result_view(expected.lse, host.args.lse));
  // Small int32 tensors last: the others then start where a reader can use them in place.
  std::stable_partition(tensors.begin(), tensors.end(), [](const auto& named) { return named.second.dtype != FLASHREL_INT32; });
  return write_safetensors(path, tensors, metadata_of(host));
}

Status write_result(const std::string& path, const HostProblem& host, FileResult result) {
  std::vector<std::pair<std::string, flashrel_tensor>> tensors = {{"out", result_view(result.out, host.args.out)}};
  if (!result.lse.empty()) tensors.emplace_back("lse", result_view(result.lse, host.args.lse));
  return write_safetensors(path, tensors, {{"case", host.label}, {"seed", std::to_string(host.seed)}});
}

}  // namespace flashrel::check
