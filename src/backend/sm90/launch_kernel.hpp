// A kernel launch that may overlap with the end of the kernel before it (programmatic dependent launch).
#pragma once

#include "base/status.hpp"

namespace flashrel::sm90 {

// What a CTA may have on compute capability 9.0.
inline constexpr int kMaxSharedBytes = 227 * 1024;

struct LaunchShape {
  int n_blocks = 1, n_threads = 32;
  int shared_bytes = 0;   // dynamic
  bool overlaps = false;  // the kernel waits by itself for the one before (griddepcontrol.wait)
};

// `params`: the kernel's single argument. `name` is for the error text.
Status launch_kernel(const char* name, const void* kernel, const LaunchShape& shape, void* params, void* stream);

}  // namespace flashrel::sm90
