// Matrix products outside attention: float32 sums over bfloat16 weights, packed once; threads of FlashRel's pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.hpp"
#include "matmul_kernel.hpp"

namespace inkling {

// Calls work(i) once for every i of [0, n), on all threads of the pool.
template <class Work>
void parallel_for_each(std::int64_t n, Work&& work) {
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::int64_t n;
    Work& work;
  } shared{{0}, n, work};
  const auto task = [](void* context, int) {
    auto& s = *static_cast<Shared*>(context);
    for (std::int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.n;) s.work(i);
  };
  if (n == 1) return work(0);
  flashrel::parallel_for(flashrel::parallel_width(), task, &shared);
}

// A weight matrix (n_out, n_in) for products y = x W^T, in bfloat16 as checkpoints have it: a decode step reads every weight.
// LAYOUT: panels of kPanel outputs; [panel][n_in][kPanel], the last panel padded with zeros.
class PackedMatrix {
 public:
  static constexpr int kPanel = kPanelWidth;

  PackedMatrix() = default;
  PackedMatrix(std::span<const float> row_major, int n_out, int n_in);

  int n_out() const { return n_out_; }
  int n_in() const { return n_in_; }
  int n_panels() const { return (n_out_ + kPanel - 1) / kPanel; }
  const std::uint16_t* panel(int index) const { return data_.data() + static_cast<std::size_t>(index) * n_in_ * kPanel; }

 private:
  int n_out_ = 0, n_in_ = 0;
  std::vector<std::uint16_t> data_;
};

// y (n_rows, n_out) = x (n_rows, n_in) W^T. A row's bits depend on that row and the instruction set alone.
void multiply(const float* x, std::int64_t n_rows, const PackedMatrix& w, float* y);

}  // namespace inkling
