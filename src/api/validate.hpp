// From raw ABI arguments to Problem + Tensors + Options, or the sentence that says what is wrong. The only gate: nothing
// behind it checks arguments again.
#pragma once

#include "base/status.hpp"
#include "combine/combine.hpp"
#include "core/options.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "flashrel/flashrel.h"

namespace flashrel {

struct Call {
  Problem problem;
  Tensors tensors;
  Options options;
};

Status validate(const flashrel_attention_args& args, Call& call);

// Checks of the contents of cu_seqlens_q, cache_seqlens and block_table (host memory): what `validate = 1` asks for.
Status validate_contents(const Problem& problem, const Tensors& tensors);

Status validate_merge(const flashrel_merge_args& args, MergeProblem& problem, MergeTensors& tensors);

}  // namespace flashrel
