#include "cli/ceilings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "api/device.hpp"
#include "backend/cpu/ceilings.hpp"

#if defined(FLASHREL_WITH_CUDA)
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#endif

namespace flashrel::cli {

#if defined(FLASHREL_WITH_CUDA)

double measure_gpu_read_gb_per_s(std::size_t bytes);  // gpu_read.cu

namespace {

// cuBLAS, when the machine has it: loaded at run time so that the program does not need it. Its C interface is stable; the
// constants are those of library_types.h and cublas_api.h.
struct Cublas {
  using Gemm = int (*)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int type_a,
                       int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc,
                       int compute_type, int algo);
  static constexpr int kNoTranspose = 0, kBf16 = 14, kCompute32F = 68, kDefaultAlgo = -1;

  void* handle = nullptr;
  Gemm gemm = nullptr;

  bool load() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    return create != nullptr && gemm != nullptr && create(&handle) == 0;
  }
};

// Best bf16 product of 8192 x 8192 matrices; 0 without cuBLAS.
double measure_gpu_matrix_tflop_per_s() {
  constexpr int kSize = 8192;
  constexpr std::size_t kBytes = std::size_t{2} * kSize * kSize;
  Cublas blas;
  if (!blas.load()) return 0;
  void *a = nullptr, *b = nullptr, *c = nullptr;
  for (void** matrix : {&a, &b, &c})
    if (cudaMalloc(matrix, kBytes) != cudaSuccess) return 0;
  // Small normal numbers: all-zero operands would draw less power and so clock higher.
  std::vector<std::uint16_t> values(std::size_t{kSize} * kSize);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::uint16_t>(0x3c00u + (i * 2654435761u >> 24) + ((i * 40503u & 64u) << 9));
  for (void* matrix : {a, b}) cudaMemcpy(matrix, values.data(), kBytes, cudaMemcpyHostToDevice);
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const float one = 1, zero = 0;
  double best = 0;
  for (int round = 0; round < 12; ++round) {
    float ms = 0;
    cudaEventRecord(begin);
    const int error =
        blas.gemm(blas.handle, Cublas::kNoTranspose, Cublas::kNoTranspose, kSize, kSize, kSize, &one, a, Cublas::kBf16, kSize,
                  b, Cublas::kBf16, kSize, &zero, c, Cublas::kBf16, kSize, Cublas::kCompute32F, Cublas::kDefaultAlgo);
    cudaEventRecord(end);
    if (error != 0 || cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) break;
    best = std::max(best, 2.0 * kSize * kSize * kSize / (ms * 1e9));
  }
  for (void* matrix : {a, b, c}) cudaFree(matrix);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

Ceilings measure_gpu() {
  Ceilings c;
  std::string reason;
  const std::vector<Device> gpus = cuda_devices(reason);
  if (gpus.empty()) return c;
  c.machine = gpus[0].name;
  c.read_gb_per_s = measure_gpu_read_gb_per_s(std::size_t{4} << 30);
  c.matrix_tflop_per_s = measure_gpu_matrix_tflop_per_s();
  c.how = "4 GiB read once, best of 10; bf16 product of 8192 x 8192 by cuBLAS, best of 12";
  if (c.matrix_tflop_per_s <= 0) {
    c.matrix_tflop_per_s = gpus[0].matrix_tflop_per_s;
    c.how = "4 GiB read once, best of 10; matrix rate nominal, no cuBLAS here";
  }
  return c;
}

}  // namespace

#endif

namespace {

Ceilings measure_host() {
  Ceilings c;
  c.machine = fmt::format("CPU, {} threads, {}", host_device().n_threads, cpu::matrix_isa(DType::kBFloat16));
  c.read_gb_per_s = cpu::measure_read_gb_per_s();
  c.matrix_tflop_per_s = cpu::measure_matrix_gflops(DType::kBFloat16) * 1e-3;
  c.how = "512 MiB read; bf16 products in registers, all threads";
  return c;
}

}  // namespace

Ceilings measure_ceilings(MemoryKind memory) {
#if defined(FLASHREL_WITH_CUDA)
  if (memory == MemoryKind::kCuda) return measure_gpu();
#endif
  static_cast<void>(memory);
  return measure_host();
}

}  // namespace flashrel::cli
