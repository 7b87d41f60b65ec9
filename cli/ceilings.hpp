// What the machine can do at best, measured in the same run as the times that stand beside it.
#pragma once

#include <string>

#include "base/types.hpp"

namespace flashrel::cli {

struct Ceilings {
  double read_gb_per_s = 0, matrix_tflop_per_s = 0;  // 0 = not known
  std::string machine, how;                          // what it is; how the two were measured
};

Ceilings measure_ceilings(MemoryKind memory);

}  // namespace flashrel::cli
