#include "backend/cpu/ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cpu/isa.hpp"
#include "base/parallel.hpp"

namespace flashrel::cpu {
namespace {

constexpr int kRepetitions = 5;

double seconds_of(Task task, void* context, int n_tasks) {
  const auto start = std::chrono::steady_clock::now();
  parallel_for(n_tasks, task, context);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct MatrixRun {
  const IsaKernels* kernels;
  long iterations;
  std::vector<double> operations;  // by task
};

struct ReadRun {
  const IsaKernels* kernels;
  float* data;
  std::size_t floats_per_task;
  std::vector<float> sums;  // by task; kept so that the reads are
};

}  // namespace

std::string matrix_isa(DType dtype) { return kernels_in_use(dtype).name; }

double measure_matrix_gflops(DType dtype) {
  const int n_tasks = parallel_width();
  MatrixRun run{&kernels_in_use(dtype), 1000, std::vector<double>(static_cast<std::size_t>(n_tasks))};
  const Task task = [](void* context, int i) {
    auto& r = *static_cast<MatrixRun*>(context);
    r.operations[static_cast<std::size_t>(i)] = r.kernels->matrix_loop(r.iterations);
  };
  // Long enough for the threads' start to vanish: double until 50 ms.
  while (seconds_of(task, &run, n_tasks) < 0.05) run.iterations *= 2;
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const double seconds = seconds_of(task, &run, n_tasks);
    double operations = 0;
    for (double x : run.operations) operations += x;
    best = std::max(best, operations / seconds * 1e-9);
  }
  return best;
}

double measure_read_gb_per_s() {
  constexpr std::size_t kFloats = std::size_t{128} << 20;
  const int n_chunks = parallel_width() * 16;
  std::vector<float> data(kFloats, 1.0f);
  ReadRun run{&kernels_in_use(DType::kFloat32), data.data(), kFloats / static_cast<std::size_t>(n_chunks) / 64 * 64,
              std::vector<float>(static_cast<std::size_t>(n_chunks))};
  const Task task = [](void* context, int i) {
    auto& r = *static_cast<ReadRun*>(context);
    const auto chunk = static_cast<std::size_t>(i);
    r.sums[chunk] = r.kernels->read_loop(r.data + chunk * r.floats_per_task, r.floats_per_task);
  };
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const double seconds = seconds_of(task, &run, n_chunks);
    best = std::max(best, static_cast<double>(run.floats_per_task) * n_chunks * sizeof(float) / seconds * 1e-9);
  }
  return best;
}

}  // namespace flashrel::cpu
