#include "matmul.hpp"

#include <algorithm>

#include "base/types.hpp"

namespace inkling {
namespace {

PanelKernel choose_kernel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_panel_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_panel_avx2;
#endif
  return multiply_panel_generic;
}

}  // namespace

PackedMatrix::PackedMatrix(std::span<const float> row_major, int n_out, int n_in) : n_out_(n_out), n_in_(n_in) {
  data_.assign(static_cast<std::size_t>(n_panels()) * n_in * kPanel, 0);
  for (int o = 0; o < n_out; ++o) {
    std::uint16_t* column = data_.data() + static_cast<std::size_t>(o / kPanel) * n_in * kPanel + o % kPanel;
    const float* row = row_major.data() + static_cast<std::size_t>(o) * n_in;
    for (int i = 0; i < n_in; ++i) column[static_cast<std::ptrdiff_t>(i) * kPanel] = flashrel::float_to_bf16(row[i]);
  }
}

void multiply(const float* x, std::int64_t n_rows, const PackedMatrix& w, float* y) {
  static const PanelKernel kernel = choose_kernel();
  constexpr int kPanelsPerTask = 2;
  const int n_tasks = (w.n_panels() + kPanelsPerTask - 1) / kPanelsPerTask;
  parallel_for_each(n_tasks, [&](std::int64_t task) {
    const int first = static_cast<int>(task) * kPanelsPerTask;
    for (int p = first; p < std::min(first + kPanelsPerTask, w.n_panels()); ++p) {
      const int n_columns = std::min(PackedMatrix::kPanel, w.n_out() - p * PackedMatrix::kPanel);
      kernel(x, n_rows, w.n_in(), w.panel(p), y + p * PackedMatrix::kPanel, w.n_out(), n_columns);
    }
  });
}

}  // namespace inkling
