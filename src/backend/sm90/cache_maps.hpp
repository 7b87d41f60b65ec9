// Tensor maps of K and V, as both kernels read them.
#pragma once

#include <cuda.h>

#include "base/status.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "gpu/tensor_map.hpp"

namespace flashrel::sm90 {

// (x = head * head_stride + 64 line part, 8 slots, line, slot / 8, page)   box (64, 8, lines, keys / 8, 1)
Status make_cache_maps(const Problem& problem, const Tensors& tensors, int keys_per_box, gpu::L2Fetch fetch, CUtensorMap& k,
                       CUtensorMap& v);

}  // namespace flashrel::sm90
