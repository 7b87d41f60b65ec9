// What the sm90 backend serves and how: host-only decisions from Problem, Device and Options.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"

namespace flashrel::sm90 {

// Sequences of at most so many packed rows go to decode even in a call that prefill takes: in batches that may hold both, and
// in `deterministic` calls always.
inline constexpr int kFewRows = 32;

// The kernel that a call takes whose sequences are all of at most max_seqlen_q rows: decode when those are few.
bool takes_decode(const Problem& problem, const Options& options);
// Policy::few_rows of a call that prefill takes: kFewRows or 0.
int choose_few_rows(const Problem& problem, const Options& options);
// The kernel that a plan was made for.
bool is_decode(const Policy& policy);

// rel_edge = clamp: every distance reads the table.
constexpr bool is_clamped(Range band) { return band.begin == -kFar && band.end == kFar; }

// "" or the sentence that names what it cannot serve.
std::string supports(const Problem& problem, const Device& device, const Options& options);
Policy choose_policy(const Problem& problem, const Device& device, const Options& options);

}  // namespace flashrel::sm90
