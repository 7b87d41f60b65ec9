// Counted work of a call at its host bounds, and the time a machine with the given ceilings needs at least.
#pragma once

#include "core/device.hpp"
#include "core/problem.hpp"

namespace flashrel {

struct Cost {
  double flops = 0, bytes = 0;  // each input read once, each output written once
  double predicted_us = 0;      // 0 = the device's ceilings are unknown
};

Cost estimate_cost(const Problem& problem, const Device& device);

}  // namespace flashrel
