// Tensor maps (sm_90): the description of a global tensor and the box of it that one TMA copy brings.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

#include "base/status.hpp"
#include "base/types.hpp"

namespace flashrel::gpu {

struct MapDim {
  std::int64_t size = 1;
  std::int64_t stride_elems = 0;  // from one index to the next; the innermost dimension is contiguous and ignores it
  int box = 1;
};

enum class Swizzle { kNone, k128Bytes };
// What a miss brings into L2: whole 256 bytes, or the sectors that were asked for.
enum class L2Fetch { k256Bytes, kSectors };

// TMA's limits, for supports(): strides are multiples of 16 bytes below 2^40, sizes are at most 2^32.
inline constexpr int kTmaAlignBytes = 16;

// Innermost dimension first; two to five dimensions of bfloat16, float16 or float32. `name` is for the error text.
Status make_tensor_map(const char* name, const void* data, DType dtype, std::initializer_list<MapDim> dims, Swizzle swizzle,
                       CUtensorMap& map, L2Fetch fetch = L2Fetch::k256Bytes);

}  // namespace flashrel::gpu
