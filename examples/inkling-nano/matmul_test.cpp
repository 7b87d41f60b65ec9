#include "matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace inkling {
namespace {

// Multiples of 1/128: exact in bfloat16.
std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 257) - 128) / 128.0f;
  return values;
}

void expect_product(const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& y, int n_rows,
                    int n_out, int n_in) {
  for (int r = 0; r < n_rows; ++r)
    for (int o = 0; o < n_out; ++o) {
      double sum = 0, size = 0;
      for (int i = 0; i < n_in; ++i) {
        const double term = static_cast<double>(x[r * n_in + i]) * w[o * n_in + i];
        sum += term, size += std::abs(term);
      }
      ASSERT_NEAR(y[r * n_out + o], sum, 1e-6 * size) << "row " << r << ", output " << o;
    }
}

TEST(Matmul, EqualsThePlainSumForEveryNumberOfRows) {
  for (const int n_out : {1, 16, 37, 96})
    for (int n_rows = 1; n_rows <= 27; ++n_rows) {
      const int n_in = 41;
      const std::vector<float> x = random_values(n_rows * n_in, 1), w = random_values(n_out * n_in, 2);
      std::vector<float> y(n_rows * n_out, 99.0f);
      multiply(x.data(), n_rows, PackedMatrix(w, n_out, n_in), y.data());
      expect_product(x, w, y, n_rows, n_out, n_in);
    }
}

TEST(Matmul, EveryKernelOfThisMachine) {
  std::vector<PanelKernel> kernels = {multiply_panel_generic};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernels.push_back(multiply_panel_avx2);
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(multiply_panel_avx512);
#endif
  const int n_rows = 29, n_in = 64, n_out = kPanelWidth;
  const std::vector<float> x = random_values(n_rows * n_in, 3), w = random_values(n_out * n_in, 4);
  const PackedMatrix packed(w, n_out, n_in);
  for (const PanelKernel kernel : kernels) {
    std::vector<float> y(n_rows * n_out), one(n_out);
    kernel(x.data(), n_rows, n_in, packed.panel(0), y.data(), n_out, n_out);
    expect_product(x, w, y, n_rows, n_out, n_in);
    for (int r = 0; r < n_rows; ++r) {  // alone: the same bits
      kernel(x.data() + r * n_in, 1, n_in, packed.panel(0), one.data(), n_out, n_out);
      for (int o = 0; o < n_out; ++o) ASSERT_EQ(one[o], y[r * n_out + o]) << "row " << r << ", output " << o;
    }
  }
}

}  // namespace
}  // namespace inkling
