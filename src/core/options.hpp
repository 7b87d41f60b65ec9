// Options: what the caller may force.
#pragma once

#include <string>

namespace flashrel {

struct Options {
  std::string backend = "auto";
  std::string route = "auto";
  int num_splits = 0;  // 0 = automatic, n = at most n
  bool deterministic = false;
};

}  // namespace flashrel
