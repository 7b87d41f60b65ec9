// The inner product loop, one object an instruction set (matmul_kernel.cpp is compiled once for each); includes nothing that
// could be shared with code for another one.
#pragma once

#include <cstdint>

namespace inkling {

inline constexpr int kPanelWidth = 16;  // outputs of a panel

// y (n_rows, y_stride)[:, 0 ... n_columns) = x (n_rows, n_in) times one panel (n_in, kPanelWidth) of bfloat16.
using PanelKernel = void (*)(const float* x, std::int64_t n_rows, int n_in, const std::uint16_t* panel, float* y, int y_stride,
                             int n_columns);

void multiply_panel_generic(const float*, std::int64_t, int, const std::uint16_t*, float*, int, int);
void multiply_panel_avx2(const float*, std::int64_t, int, const std::uint16_t*, float*, int, int);
void multiply_panel_avx512(const float*, std::int64_t, int, const std::uint16_t*, float*, int, int);

}  // namespace inkling
