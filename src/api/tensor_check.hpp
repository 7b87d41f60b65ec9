// Checks of one tensor view: rank, dtype, shape, contiguity. Every sentence names the tensor, what was found, what was
// expected.
#pragma once

#include <initializer_list>
#include <string>

#include "base/status.hpp"
#include "base/types.hpp"
#include "flashrel/flashrel.h"

namespace flashrel {

// What one dimension must be; size < 0 = any size >= 0.
struct Dim {
  const char* name;
  std::int64_t size = -1;
};

inline bool present(const flashrel_tensor& t) { return t.data != nullptr || t.rank > 0; }
inline DType dtype_of(const flashrel_tensor& t) { return static_cast<DType>(t.dtype); }

// "(3, 8, 128)"
std::string shape_text(const flashrel_tensor& t);

// Rank, dtype (any of `dtypes`) and the sizes of all dimensions; data may be NULL only when the tensor has no elements.
Status check_tensor(const char* name, const flashrel_tensor& t, std::initializer_list<DType> dtypes,
                    std::initializer_list<Dim> dims);

// The last dimension must be contiguous.
Status check_contiguous_rows(const char* name, const flashrel_tensor& t);

// Byte range [begin, end) that the view may touch; empty for a tensor without elements.
struct Extent {
  const char* begin = nullptr;
  const char* end = nullptr;
};
Extent extent_of(const flashrel_tensor& t);

}  // namespace flashrel
