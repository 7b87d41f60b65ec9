// Counted work of a call at its host bounds, and the time a machine with the given ceilings needs at least.
#pragma once

#include "core/device.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel {

Cost estimate_cost(const Problem& problem, const Device& device);

}  // namespace flashrel
