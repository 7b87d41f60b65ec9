// Defaults of the ABI's argument structs; stands alone, so that readers of arguments need not link the backends.
#include <algorithm>
#include <cstring>
#include <limits>

#include "flashrel/flashrel.h"

namespace {

// A caller built against an older header has a shorter struct: no byte past its size may be written.
template <class Args>
void copy_defaults(Args defaults, Args* args, std::size_t struct_size) {
  if (args == nullptr) return;
  defaults.struct_size = struct_size;
  std::memcpy(static_cast<void*>(args), &defaults, std::min(struct_size, sizeof defaults));
}

}  // namespace

extern "C" {

void flashrel_attention_args_init(flashrel_attention_args* args, size_t struct_size) {
  flashrel_attention_args defaults{};
  defaults.device = -1;
  defaults.max_seqlen_q = defaults.max_seqlen_k = -1;
  defaults.softmax_scale = std::numeric_limits<double>::quiet_NaN();
  defaults.causal = 1;
  defaults.window_left = defaults.window_right = -1;
  copy_defaults(defaults, args, struct_size);
}

void flashrel_merge_args_init(flashrel_merge_args* args, size_t struct_size) {
  flashrel_merge_args defaults{};
  defaults.device = -1;
  copy_defaults(defaults, args, struct_size);
}

}  // extern "C"
