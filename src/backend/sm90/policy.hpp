// What the sm90 backend serves and how: host-only decisions from Problem, Device and Options.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel::sm90 {

// Fewer packed rows than this are decode: most of a 128-row tile would be padding.
inline constexpr std::int64_t kMinRows = 64;

// "" or the sentence that names what it cannot serve.
std::string supports(const Problem& problem, const Device& device, const Options& options);
Policy choose_policy(const Problem& problem, const Device& device, const Options& options);

}  // namespace flashrel::sm90
