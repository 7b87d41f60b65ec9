// Problems from case lines: the same case and seed give the same bits everywhere.
#pragma once

#include <cstdint>

#include "check/case_line.hpp"
#include "check/host_problem.hpp"

namespace flashrel::check {

// What a sequence's rows and keys hold depends on (seed, sequence, position, head) alone, never on pages, layout or
// strides, so that cases that differ only in those must give equal results.
HostProblem generate(const Case& c, std::uint64_t seed);

// Shapes, strides and lengths alone, to plan a case of any size: every other pointer is a placeholder that must not be read.
HostProblem outline(const Case& c);

}  // namespace flashrel::check
