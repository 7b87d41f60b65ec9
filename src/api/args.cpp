// Defaults of the ABI's argument structs; stands alone, so that readers of arguments need not link the backends.
#include <cstring>
#include <limits>

#include "flashrel/flashrel.h"

extern "C" {

void flashrel_attention_args_init(flashrel_attention_args* args) {
  if (args == nullptr) return;
  std::memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
  args->device = -1;
  args->max_seqlen_q = args->max_seqlen_k = -1;
  args->softmax_scale = std::numeric_limits<double>::quiet_NaN();
  args->causal = 1;
  args->window_left = args->window_right = -1;
}

void flashrel_merge_args_init(flashrel_merge_args* args) {
  if (args == nullptr) return;
  std::memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
  args->device = -1;
}

}  // extern "C"
