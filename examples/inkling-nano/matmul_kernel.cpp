// Compiled with INKLING_KERNEL = the function's name, and with the flags of its instruction set.
#include "matmul_kernel.hpp"

#include <cstring>

namespace inkling {
namespace {

// Rows a pass: their sums fill the registers but for the operands.
#if defined(__AVX512F__)
constexpr int kRows = 12;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 3;
#endif

typedef float Vector __attribute__((vector_size(kPanelWidth * sizeof(float))));
typedef std::uint32_t Bits __attribute__((vector_size(kPanelWidth * sizeof(std::uint32_t))));
typedef std::uint16_t HalfBits __attribute__((vector_size(kPanelWidth * sizeof(std::uint16_t)), aligned(2), may_alias));

// bfloat16 is the upper half of a float32.
inline Vector widen(const std::uint16_t* weights) {
  return reinterpret_cast<Vector>(__builtin_convertvector(*reinterpret_cast<const HalfBits*>(weights), Bits) << 16);
}

// Sums run over the inputs in order whatever R is, so a row's bits do not depend on its neighbours.
template <int R>
void multiply_rows(const float* x, int n_in, const std::uint16_t* panel, float* y, int y_stride, int n_columns) {
  Vector sums[R] = {};
  for (int k = 0; k < n_in; ++k) {
    const Vector weights = widen(panel + static_cast<std::ptrdiff_t>(k) * kPanelWidth);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sums[r] += x[static_cast<std::ptrdiff_t>(r) * n_in + k] * weights;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
    std::memcpy(y + static_cast<std::ptrdiff_t>(r) * y_stride, &sums[r], static_cast<std::size_t>(n_columns) * sizeof(float));
}

// The last n_rows < R rows.
template <int R>
void multiply_rest(const float* x, int n_rows, int n_in, const std::uint16_t* panel, float* y, int y_stride, int n_columns) {
  if constexpr (R > 1) {
    if (n_rows == R - 1)
      multiply_rows<R - 1>(x, n_in, panel, y, y_stride, n_columns);
    else
      multiply_rest<R - 1>(x, n_rows, n_in, panel, y, y_stride, n_columns);
  }
}

}  // namespace

void INKLING_KERNEL(const float* x, std::int64_t n_rows, int n_in, const std::uint16_t* panel, float* y, int y_stride,
                    int n_columns) {
  for (; n_rows >= kRows; n_rows -= kRows) {
    multiply_rows<kRows>(x, n_in, panel, y, y_stride, n_columns);
    x += static_cast<std::ptrdiff_t>(kRows) * n_in;
    y += static_cast<std::ptrdiff_t>(kRows) * y_stride;
  }
  multiply_rest<kRows>(x, static_cast<int>(n_rows), n_in, panel, y, y_stride, n_columns);
}

}  // namespace inkling
