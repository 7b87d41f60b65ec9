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

// Host memory: the contents of cu_seqlens_q and cache_seqlens against shapes and bounds. Every run asks for it.
Status validate_lengths(const Problem& problem, const Tensors& tensors);
// Host memory: the used entries of block_table, once the lengths are right. `validate = 1` asks for it.
Status validate_pages(const Problem& problem, const Tensors& tensors);

Status validate_merge(const flashrel_merge_args& args, MergeProblem& problem, MergeTensors& tensors);

}  // namespace flashrel
