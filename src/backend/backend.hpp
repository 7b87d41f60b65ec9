// What a backend is: five functions and a name. backend/list.cpp holds the two ordered lists; plan/route walks them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "core/device.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel {

struct Backend {
  std::string_view name;
  MemoryKind memory;
  // Why this build or this backend's state keeps it out of `auto` ("" = it takes part). Forcing it by name still works
  // when it is compiled in.
  std::string (*off_reason)();
  // "" when it can serve; else one sentence: the argument, what was found, what is needed.
  std::string (*supports)(const Problem&, const Device&, const Options&);
  Policy (*choose_policy)(const Problem&, const Device&, const Options&);
  // Books what the kernel needs beyond the item table and the part buffers, which make_plan books for everyone.
  void (*book_workspace)(const Problem&, const Plan&, Workspace&);
  // Runs all work items: results of single-part items to out and lse, parts to the workspace's part buffers.
  // The caller merges the parts afterwards (combine/).
  Status (*launch)(const Problem&, const Tensors&, const Plan&, void* workspace, void* stream);
};

// In routing order.
std::span<const Backend* const> backends_for(MemoryKind memory);

}  // namespace flashrel
