// Real problem files: what the model hands to FlashRel, cut down to the pages that it reads.
#pragma once

#include <string>
#include <vector>

#include "checks.hpp"

namespace inkling {

// Writes {local,global}_{prefill,decode}.safetensors into `folder` from a run over the held-out text, and returns their paths:
// one token of each of two sequences (1,153 and 301 keys), and a chunk of 64 tokens behind 1,153 others.
std::vector<std::string> capture_problems(const Weights& weights, const Reference& reference, const ServerOptions& options,
                                          const std::string& folder);

}  // namespace inkling
