// Tensors: the pointers of one call, in the memory that Problem names. Shapes and strides are in Problem.
#pragma once

#include <cstdint>

namespace flashrel {

struct Tensors {
  const void* q = nullptr;
  const void* k_cache = nullptr;
  const void* v_cache = nullptr;
  const std::int32_t* block_table = nullptr;
  const std::int32_t* cache_seqlens = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;
  const void* rel_logits = nullptr;  // mode logits
  const void* rel = nullptr;         // mode fused
  const void* rel_proj = nullptr;    // mode fused
  const float* rel_scale = nullptr;  // mode fused, optional
  void* out = nullptr;
  float* lse = nullptr;  // optional
};

}  // namespace flashrel
