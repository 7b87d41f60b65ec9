// What the plan is told about the machine: the host's CPU, or one CUDA device through the runtime.
#pragma once

#include <vector>

#include "base/status.hpp"
#include "core/device.hpp"

namespace flashrel {

Device host_device();
// ordinal -1 = the thread's current device. Read once per device and kept.
Status cuda_device(int ordinal, Device& device);
// Every CUDA device present; `reason` says why there is none.
std::vector<Device> cuda_devices(std::string& reason);
// Makes `ordinal` the current device while in scope; nothing in a build without CUDA.
class CurrentCudaDevice {
 public:
  explicit CurrentCudaDevice(int ordinal);
  ~CurrentCudaDevice();
  CurrentCudaDevice(const CurrentCudaDevice&) = delete;
  CurrentCudaDevice& operator=(const CurrentCudaDevice&) = delete;

 private:
  int previous_ = -1;
};

// Nominal dense bf16 rate per SM and clock, from the vendor's architecture white papers; 0 = unknown.
constexpr int matrix_flops_per_clock(int capability) {
  if (capability >= 100 && capability < 120) return 8192;
  if (capability == 90) return 4096;
  if (capability == 80) return 2048;
  return capability > 80 ? 1024 : 0;
}

}  // namespace flashrel
