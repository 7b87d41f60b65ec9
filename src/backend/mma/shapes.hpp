// Tile shapes of the mma kernels and their shared-memory maps; plain constants, read by the kernels, the policy and the launch.
#pragma once

#include <cstddef>

namespace flashrel::mma {

// Many rows: 4 warps, each 16 or 32 rows x all keys of the tile.
template <int kDim>
struct RowsShape {
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  // EVIDENCE: 32 rows a warp halve the shared-memory reads of K and V a product; head_dim 256 has registers for 16 only.
  static constexpr int kRowBlocks = kDim == 256 ? 1 : 2;  // of 16 rows, a warp
  static constexpr int kRowBlockStride = 16 * kWarps;     // rows between the blocks of a warp
  static constexpr int kTileRows = 16 * kWarps * kRowBlocks;
  static constexpr int kTileKeys = kDim == 256 ? 32 : 64;
  static constexpr int kKeyBlocks = kTileKeys / 8, kDimBlocks = kDim / 8;

  static constexpr int kKeysAt = kTileRows * kDim * 2;
  static constexpr int kValuesAt = kKeysAt + kTileKeys * kDim * 2;
  static constexpr int kOffsetsAt = kValuesAt + kTileKeys * kDim * 2;
  static constexpr int kRowsAt = kOffsetsAt + 2 * 2 * kTileKeys * 8;
  static constexpr int kExtraAt = kRowsAt + kTileRows * 32;
};

// Few rows: 4 warps share 16 rows and split the keys of a tile.
template <int kDim>
struct KeysShape {
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kTileRows = 16;
  static constexpr int kWarpKeys = 16;  // keys of a tile that one warp owns
  static constexpr int kTileKeys = kWarpKeys * kWarps;
  static constexpr int kKeyBlocks = kWarpKeys / 8, kDimBlocks = kDim / 8;
  static constexpr int kSlots = 4;  // of a warp's ring; a slot holds K or V of kWarpKeys keys
  static constexpr int kSlotBytes = kWarpKeys * kDim * 2;
  static constexpr int kMergeStride = kDim + 8;  // floats a row of the merge buffer, which overlays the rings

  static constexpr int kRingBytes = kWarps * kSlots * kSlotBytes;
  static constexpr int kMergeBytes = kWarps * kTileRows * (kMergeStride + 2) * 4;
  static constexpr int kQueriesAt = kRingBytes;
  static constexpr int kRowsAt = kQueriesAt + kTileRows * kDim * 2;
  static constexpr int kExtraAt = kRowsAt + kTileRows * 32;
  static_assert(kMergeBytes <= kRingBytes);
};

// Bytes past kExtraAt: rel rows (fused), windows (sheared; 16 rows x (keys + 8) floats a warp).
constexpr std::size_t rel_bytes(int tile_rows, int d_rel) {
  return static_cast<std::size_t>(tile_rows) * static_cast<std::size_t>((d_rel + 15) / 16) * 16 * 2;
}
constexpr std::size_t window_bytes(int n_warps, int keys) {
  return static_cast<std::size_t>(n_warps) * 16 * static_cast<std::size_t>(keys + 8) * 4;
}

}  // namespace flashrel::mma
