// The ordered walk over the backends of one memory kind, with every refusal's reason.
#pragma once

#include "base/status.hpp"
#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel {

// Fills plan.backend and plan.considered. A forced backend that cannot serve is an error, never a silent move.
Status choose_backend(const Problem& problem, const Device& device, const Options& options, Plan& plan);

}  // namespace flashrel
