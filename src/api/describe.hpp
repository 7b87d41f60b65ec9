// Plans and builds as JSON text.
#pragma once

#include <string>

#include "core/device.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel {

std::string describe_plan(const Problem& problem, const Device& device, const Plan& plan);
std::string describe_build();

}  // namespace flashrel
