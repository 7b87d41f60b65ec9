// What the CUDA calls that one call of the library makes cost the host, us: the floor under `python -m flashrel.bench
// --call-cost`. Kernels are empty, their arguments as large as the library's; the device is idle before every batch.
//   nvcc -O2 -std=c++17 -arch=sm_90a tools/cuda_host_cost.cu -o cuda_host_cost && ./cuda_host_cost
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

struct alignas(64) AttentionArgs {
  char bytes[1152];
};
struct ScheduleArgs {
  char bytes[320];
};
__global__ void attention(const __grid_constant__ AttentionArgs) {}
__global__ void schedule(ScheduleArgs) {}

constexpr int kInARow = 32, kBatches = 400;

template <class Call>
void measure(const char* name, Call&& call) {
  std::vector<double> us;
  for (int batch = 0; batch < kBatches; ++batch) {
    cudaDeviceSynchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kInARow; ++i) call();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kInARow);
  }
  if (cudaDeviceSynchronize() != cudaSuccess) std::printf("%s: %s\n", name, cudaGetErrorString(cudaGetLastError()));
  std::sort(us.begin(), us.end());
  std::printf("%-36s median %6.3f   p10 %6.3f   p90 %6.3f\n", name, us[kBatches / 2], us[kBatches / 10], us[kBatches * 9 / 10]);
}

void launch(const void* kernel, void* args, bool overlaps) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(132);
  config.blockDim = dim3(128);
  config.attrs = &overlap;
  config.numAttrs = overlaps ? 1 : 0;
  cudaLaunchKernelExC(&config, kernel, &args);
}

int main() {
  void* memory = nullptr;
  if (cudaMalloc(&memory, 1 << 26) != cudaSuccess) return std::printf("no CUDA device\n"), 1;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);

  int n = 0;
  CUtensorMap map;
  const cuuint64_t dims[5] = {64, 8, 2, 16, 64}, strides[4] = {2048, 128, 16384, 262144};
  const cuuint32_t box[5] = {64, 8, 2, 8, 1}, step[5] = {1, 1, 1, 1, 1};
  AttentionArgs attention_args{};
  ScheduleArgs schedule_args{};
  const void* kernels[] = {reinterpret_cast<const void*>(attention), reinterpret_cast<const void*>(schedule)};
  measure("cudaGetDevice", [&] { cudaGetDevice(&n); });
  measure("cudaFuncSetAttribute",
          [&] { cudaFuncSetAttribute(kernels[0], cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 17); });
  measure("cuTensorMapEncodeTiled", [&] {
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, memory, dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
           CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
  measure("one launch", [&] { launch(kernels[0], &attention_args, false); });
  measure("one launch that may overlap", [&] { launch(kernels[0], &attention_args, true); });
  measure("two launches (a call)", [&] {
    launch(kernels[1], &schedule_args, false);
    launch(kernels[0], &attention_args, true);
  });
}
