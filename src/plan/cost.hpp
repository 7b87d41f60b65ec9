// Counted work of a call at its host bounds, the time a machine with the given ceilings needs at least, and the time that the
// policy's cost model predicts.
#pragma once

#include "core/device.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel {

struct Cost {
  double flops = 0, bytes = 0;  // each input read once, each output written once
  double bound_us = 0;          // 0 = the device's ceilings are unknown
};

Cost estimate_cost(const Problem& problem, const Device& device);

// 0 = the device's ceilings or the policy's shares of them are unknown.
double predict_us(const CostModel& model, double flops, double bytes, const Device& device);

}  // namespace flashrel
