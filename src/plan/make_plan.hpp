// From a Problem, a Device and Options to a Plan; the route is chosen here and nowhere else.
#pragma once

#include "base/status.hpp"
#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel {

Status make_plan(const Problem& problem, const Device& device, const Options& options, Plan& plan);

// Schedule, bounds and workspace from plan.backend and plan.policy; also for tests that force a policy.
void complete_plan(const Problem& problem, const Options& options, Plan& plan);

}  // namespace flashrel
