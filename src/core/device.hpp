// Device: what a plan may know about the machine. Plain data, so that a plan can be made for a machine that is not there.
#pragma once

#include <string>

#include "base/types.hpp"

namespace flashrel {

struct Device {
  MemoryKind memory = MemoryKind::kHost;
  std::string name;
  // CUDA
  int ordinal = 0;
  int capability_major = 0, capability_minor = 0;
  int n_sms = 0;
  int max_smem_bytes = 0;  // a block may use
  // host
  int n_threads = 1;
  std::string cpu_isa;  // instruction set the CPU backend will use
  // both; 0 = unknown. Nominal, for predicted times only.
  double read_gb_per_s = 0;
  double matrix_tflop_per_s = 0;

  int capability() const { return capability_major * 10 + capability_minor; }
};

}  // namespace flashrel
