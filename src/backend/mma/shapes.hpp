// Tile shapes of the mma kernels and their shared-memory maps; plain constants, read by the kernels, the policy and the launch.
#pragma once

#include <cstddef>

#include "base/int_math.hpp"
#include "base/types.hpp"

namespace flashrel::mma {

// Many rows: 4 warps, each 16 or 32 rows x all keys of the tile.
template <int kDim>
struct RowsShape {
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kCtasPerSm = 2;
  // EVIDENCE: 32 rows a warp halve the shared-memory reads of K and V a product; head_dim 256 has registers for 16 only.
  static constexpr int kRowBlocks = kDim == 256 ? 1 : 2;  // of 16 rows, a warp
  static constexpr int kRowBlockStride = 16 * kWarps;     // rows between the blocks of a warp
  static constexpr int kTileRows = 16 * kWarps * kRowBlocks;
  static constexpr int kTileKeys = kDim == 256 ? 32 : 64;
  static constexpr int kKeyBlocks = kTileKeys / 8, kDimBlocks = kDim / 8;
  static constexpr int kChunkTiles = 4;  // whose key rows are looked up at once
  static constexpr int kChunkKeys = kChunkTiles * kTileKeys;
  static constexpr int kBiasKeys = kTileKeys;  // whose bias is made at once
  static constexpr bool kHasWindows = true;    // bias windows travel with K (gpu/bias_window.cuh)
  static constexpr int kWindowRows = kTileRows + kTileKeys;

  static constexpr int kKeysAt = kTileRows * kDim * 2;
  static constexpr int kValuesAt = kKeysAt + kTileKeys * kDim * 2;
  static constexpr int kPlacesAt = kValuesAt + kTileKeys * kDim * 2;
  static constexpr int kRowsAt = kPlacesAt + 2 * kChunkKeys * 8;
  static constexpr int kStateAt = kRowsAt + 2 * kTileRows * 16;
  static constexpr int kItemsAt = kStateAt + kRowBlocks * 2 * kThreads * 8;
  static constexpr int kItemsBytes = 384;
  static constexpr int kExtraAt = kItemsAt + kItemsBytes;

  static constexpr int kStageRows = min_of(16, kTileKeys / kWarps);  // output rows that fit a warp's share of the V buffer
};

// Few rows: 4 warps share 16 rows and split the keys of a tile.
template <int kDim>
struct KeysShape {
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kCtasPerSm = 3;
  static constexpr int kTileRows = 16;
  static constexpr int kWarpKeys = 16;  // keys of a tile that one warp owns
  static constexpr int kTileKeys = kWarpKeys * kWarps;
  static constexpr int kKeyBlocks = kWarpKeys / 8, kDimBlocks = kDim / 8;
  static constexpr int kBiasKeys = kWarpKeys;
  static constexpr bool kHasWindows = false;
  static constexpr int kSlots = 4;  // of a warp's ring; a slot holds K or V of kWarpKeys keys
  static constexpr int kSlotBytes = kWarpKeys * kDim * 2;
  static constexpr int kMergeStride = kDim + 8;  // floats a row of the merge buffer, which overlays the rings

  static constexpr int kRingBytes = kWarps * kSlots * kSlotBytes;
  static constexpr int kMergeBytes = kWarps * kTileRows * (kMergeStride + 2) * 4;
  static constexpr int kQueriesAt = kRingBytes;
  static constexpr int kRowsAt = kQueriesAt + kTileRows * kDim * 2;
  static constexpr int kExtraAt = kRowsAt + kTileRows * 16;
  static_assert(kMergeBytes <= kRingBytes);
};

// Fused with windows: d_rel beyond 32 would not fit the shared memory of every GPU, and reads global memory instead.
inline constexpr int kMaxWindowSteps = 2;

// Bytes past kExtraAt.
//   fused    rel rows; with windows also [rel_steps][kWindowRows] rows of the packed projection
//   sheared  a rectangle of 16 rows x (keys + 8) floats a warp, or with windows, for 16-bit rel_logits, [kTileRows][keys + 8]
template <class Shape>
constexpr std::size_t extra_bytes(Route route, int d_rel, DType logits_dtype) {
  const int steps = (d_rel + 15) / 16;
  int bytes = 0;
  if (route == Route::kFused) {
    bytes = Shape::kTileRows * steps * 32;
    if (Shape::kHasWindows && steps <= kMaxWindowSteps) bytes += steps * (Shape::kTileRows + Shape::kBiasKeys) * 32;
  } else if (route == Route::kSheared) {
    const bool window = Shape::kHasWindows && size_of(logits_dtype) == 2;
    bytes = window ? Shape::kTileRows * (Shape::kBiasKeys + 8) * 2 : Shape::kWarps * 16 * (Shape::kBiasKeys + 8) * 4;
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace flashrel::mma
