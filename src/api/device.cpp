#include "api/device.hpp"

#include <mutex>

#include "backend/cpu/cpu.hpp"
#include "base/parallel.hpp"

#if defined(FLASHREL_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace flashrel {

Device host_device() {
  Device device;
  device.memory = MemoryKind::kHost;
  device.name = "CPU";
  device.n_threads = parallel_width();
  device.cpu_isa = cpu::isa_in_use();
  return device;
}

#if defined(FLASHREL_WITH_CUDA)

namespace {

Status cuda_error(const char* call, cudaError_t error) {
  return runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

Status read_cuda_device(int ordinal, Device& device) {
  cudaDeviceProp prop{};
  if (const cudaError_t error = cudaGetDeviceProperties(&prop, ordinal); error != cudaSuccess)
    return cuda_error("cudaGetDeviceProperties", error);
  int memory_khz = 0, sm_khz = 0;
  cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, ordinal);
  cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, ordinal);
  device = Device{};
  device.memory = MemoryKind::kCuda;
  device.name = prop.name;
  device.ordinal = ordinal;
  device.capability_major = prop.major;
  device.capability_minor = prop.minor;
  device.n_sms = prop.multiProcessorCount;
  device.max_smem_bytes = static_cast<int>(prop.sharedMemPerBlockOptin);
  device.read_gb_per_s = 2.0 * memory_khz * (prop.memoryBusWidth / 8.0) * 1e-6;
  device.matrix_tflop_per_s = 1e-9 * sm_khz * prop.multiProcessorCount * matrix_flops_per_clock(device.capability());
  return {};
}

}  // namespace

Status cuda_device(int ordinal, Device& device) {
  static std::mutex mutex;
  static std::vector<Device> known;  // indexed by ordinal; n_sms == 0 = not read yet
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess)
    return cuda_error("cudaGetDeviceCount", error);
  if (ordinal < 0)
    if (const cudaError_t error = cudaGetDevice(&ordinal); error != cudaSuccess) return cuda_error("cudaGetDevice", error);
  if (ordinal >= count)
    return invalid("device: got " + std::to_string(ordinal) + ", expected -1 to " + std::to_string(count - 1));
  const std::lock_guard lock(mutex);
  known.resize(static_cast<std::size_t>(count));
  Device& entry = known[static_cast<std::size_t>(ordinal)];
  if (entry.n_sms == 0) FLASHREL_RETURN_IF_ERROR(read_cuda_device(ordinal, entry));
  device = entry;
  return {};
}

std::vector<Device> cuda_devices(std::string& reason) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    reason = cudaGetErrorString(error);
    return {};
  }
  std::vector<Device> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device device;
    if (Status status = cuda_device(ordinal, device); status.ok())
      devices.push_back(device);
    else
      reason = status.text;
  }
  if (count == 0) reason = "no CUDA device";
  return devices;
}

CurrentCudaDevice::CurrentCudaDevice(int ordinal) {
  int current = 0;
  if (cudaGetDevice(&current) == cudaSuccess && current != ordinal && cudaSetDevice(ordinal) == cudaSuccess)
    previous_ = current;
}
CurrentCudaDevice::~CurrentCudaDevice() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

#else

Status cuda_device(int, Device&) {
  return unsupported("memory: got CUDA, but this build has no GPU backends (no CUDA compiler was found)");
}
std::vector<Device> cuda_devices(std::string& reason) {
  reason = "this build has no GPU backends (no CUDA compiler was found)";
  return {};
}
CurrentCudaDevice::CurrentCudaDevice(int) {}
CurrentCudaDevice::~CurrentCudaDevice() = default;

#endif

}  // namespace flashrel
