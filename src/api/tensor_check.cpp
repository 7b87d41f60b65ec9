#include "api/tensor_check.hpp"

#include <algorithm>

namespace flashrel {
namespace {

std::string expected_shape(std::initializer_list<Dim> dims) {
  std::string text = "(";
  for (const Dim& dim : dims) {
    if (text.size() > 1) text += ", ";
    text += dim.name;
    if (dim.size >= 0) text += " = " + std::to_string(dim.size);
  }
  return text + ")";
}

std::string names_of(std::initializer_list<DType> dtypes) {
  std::string names;
  for (DType type : dtypes) names += (names.empty() ? "" : " or ") + std::string(name_of(type));
  return names;
}

bool has_elements(const flashrel_tensor& t) {
  for (int i = 0; i < t.rank; ++i)
    if (t.shape[i] == 0) return false;
  return true;
}

}  // namespace

std::string shape_text(const flashrel_tensor& t) {
  std::string text = "(";
  for (int i = 0; i < t.rank && i < FLASHREL_MAX_RANK; ++i) text += (i ? ", " : "") + std::to_string(t.shape[i]);
  return text + ")";
}

// A call checks a dozen tensors before its launches: no text is made for one that is right.
Status check_tensor(const char* name, const flashrel_tensor& t, std::initializer_list<DType> dtypes,
                    std::initializer_list<Dim> dims) {
  const auto wrong = [name](const std::string& what) { return invalid(std::string(name) + ": " + what); };
  if (!present(t)) return wrong("absent, expected shape " + expected_shape(dims));
  if (t.rank != static_cast<int>(dims.size()))
    return wrong("got rank " + std::to_string(t.rank) + ", expected shape " + expected_shape(dims));
  if (std::find(dtypes.begin(), dtypes.end(), static_cast<DType>(t.dtype)) == dtypes.end()) {
    const bool named = t.dtype >= 0 && t.dtype <= static_cast<int>(DType::kInt32);
    return wrong("got dtype " + (named ? name_of(dtype_of(t)) : std::to_string(t.dtype)) + ", expected " + names_of(dtypes));
  }
  int i = 0;
  for (const Dim& dim : dims) {
    const bool fits = dim.size < 0 ? t.shape[i] >= 0 : t.shape[i] == dim.size;
    if (!fits) return wrong("got shape " + shape_text(t) + ", expected " + expected_shape(dims));
    ++i;
  }
  if (t.data == nullptr && has_elements(t)) return wrong("got a null pointer with shape " + shape_text(t));
  return {};
}

Status check_contiguous_rows(const char* name, const flashrel_tensor& t) {
  const int last = t.rank - 1;
  if (t.shape[last] <= 1 || t.stride[last] == 1 || !has_elements(t)) return {};
  return invalid(std::string(name) + ": got stride " + std::to_string(t.stride[last]) + " in the last dimension, expected 1");
}

Extent extent_of(const flashrel_tensor& t) {
  if (t.data == nullptr || !has_elements(t)) return {};
  std::int64_t low = 0, high = 0;
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t reach = (t.shape[i] - 1) * t.stride[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<std::int64_t>(size_of(dtype_of(t)));
  const char* base = static_cast<const char*>(t.data);
  return {base + low * size, base + (high + 1) * size};
}

}  // namespace flashrel
