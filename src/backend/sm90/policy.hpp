// What the sm90 backend serves and how: host-only decisions from Problem, Device and Options.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel::sm90 {

// The kernel that a call takes: decode for a few rows a sequence, unless the result must not depend on the lengths of
// neighbours.
bool takes_decode(const Problem& problem, const Options& options);
// The kernel that a plan was made for.
bool is_decode(const Policy& policy);

// rel_edge = clamp: every distance reads the table.
constexpr bool is_clamped(Range band) { return band.begin == -kFar && band.end == kFar; }

// "" or the sentence that names what it cannot serve.
std::string supports(const Problem& problem, const Device& device, const Options& options);
Policy choose_policy(const Problem& problem, const Device& device, const Options& options);

}  // namespace flashrel::sm90
