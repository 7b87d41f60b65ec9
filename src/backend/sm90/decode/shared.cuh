// Shared memory of one CTA, and its barriers.
//
// BARRIERS (mbarriers unless said; "warp" = one lane of it arrives, after __syncwarp)
//   name            count  arrives                              waits
//   full[stages]    1 (2)  loader + bytes of K and V, in mode   consumers
//                          logits also of their run; in mode
//                          fused also the bias warp
//   empty[stages]   8      consumer warps, tile is used up      loader
//   raw_full[..]    1      loader + bytes of rel_proj's box     bias warp (mode fused only)
//   item_full[2]    32     query warp's lanes + bytes of q, rel consumers
//   item_empty[2]   256    consumers, result is written         query warp
//   named 1, 2      128    warpgroup 0 or 1                     the same: maxima and P are complete
//   named 3         256    consumers                            the same: halves of an item meet, parts are merged
#pragma once

#include <cstdint>

#include "backend/sm90/decode/tiles.hpp"
#include "index/ranges.hpp"

namespace flashrel::sm90::decode {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kWarpgroupBarrier = 1, kConsumerBarrier = 3;

// One key tile as loader, bias warp and consumers share it.
struct TileInfo {
  int first_key = 0;
  int flags = 0;
  Range seen;  // keys_in_tile: of those that some row of the sequence sees
};
inline constexpr int kTileFirst = 1, kTileLast = 2;  // of its item
inline constexpr int kTileMasked = 4;                // hides some pair
inline constexpr int kTileBiased = 8;                // some visible pair lies in the band
inline constexpr int kTileOdd = 16;                  // of its item: warpgroup 1's
inline constexpr int kNoMoreTiles = 32;
inline constexpr int kBiasShiftBit = 8;  // from here on: origin - bias_begin(origin), 0 ... 7

// One work item as query warp and consumers share it.
struct ItemInfo {
  int n_rows = 0, q_len = 0, kv_len = 0;
  int first_token = 0;  // row of q and out
  int kv_head = 0, slot = -1;
  int n_parts = 1, part = 0;
};

// How far the merge of a unit is that this CTA has made a part of.
struct MergeState {
  bool complete = false;   // all parts are there
  bool is_last = false;    // this CTA's came last
  std::uint32_t goal = 0;  // of its counters, in this run
};
inline constexpr int kMaxParts = 512;  // of a unit: one a CTA at most

// Columns of the output that change hands at a time when an item ends.
constexpr int exchange_rows(int rows) { return rows <= 40 ? rows : 16; }
constexpr int scratch_bytes(int rows) { return max_of(kTileKeys * rows * 2, exchange_rows(rows) * kHeadDim * 4); }

// What all instances of so many rows have.
template <int kRows>
struct alignas(1024) Shared {
  std::uint8_t q[2][kLinesPerRow * kRows * kLineBytes];  // LAYOUT: tiles.hpp
  // Of each warpgroup, first P^T of a tile, then output columns on their way when an item ends.
  // LAYOUT: P^T as core matrices [key / 8][row / 8][key % 8][row % 8], not swizzled
  // LAYOUT: output as float [row of exchange_rows][column ^ row / 2 % 4 * 8]
  std::uint8_t scratch[2][scratch_bytes(kRows)];
  float warp_max[2][4][kRows];  // of one tile, by warpgroup and warp
  float warp_sum[2][4][kRows];  // of an item
  float reference[2][kRows];    // of an item
  ItemInfo items[2];
  ItemInfo parts[2];                // that this CTA has made: its first item may begin inside a unit, its last may end there
  std::uint32_t arrived_before[2];  // each of them
  MergeState merge[2];              // of their units
  std::uint32_t left_over[kMaxParts / 32];  // slices of a merge that nobody has taken on, a bit each
  std::uint64_t item_full[2], item_empty[2];
};

// What the bias of a tile is made from.
template <int kRows, Bias kBias>
struct BiasBuffers {
  static constexpr int kSteps = rel_steps(kBias);
  alignas(128) std::uint8_t rel[2][kSteps][kRows * kRelRowBytes];                                  // LAYOUT: tiles.hpp
  alignas(128) std::uint8_t raw[stages(kRows, kBias)][kSteps][kRelDim * bias_entries(kRows) * 2];  // LAYOUT: [d_rel][entry]
  std::uint8_t proj[stages(kRows, kBias)][kSteps][bias_entries(kRows) * kRelRowBytes];             // LAYOUT: [entry][d_rel]
  float factor[2][kRows];                                                                          // tau / softmax_scale
};
template <int kRows>
struct BiasBuffers<kRows, Bias::kNone> {};
template <int kRows>
struct BiasBuffers<kRows, Bias::kLogits> {
  // LAYOUT: [packed row][entry]
  alignas(128) std::uint8_t logits[stages(kRows, Bias::kLogits)][kRows * bias_entries(kRows) * 2];
};

// All of a CTA's shared memory.
template <int kRows, Bias kBias>
struct alignas(1024) Memory : Shared<kRows> {
  static constexpr int kStages = stages(kRows, kBias);
  alignas(1024) std::uint8_t k[kStages][kKvTileBytes];  // LAYOUT: tiles.hpp
  std::uint8_t v[kStages][kKvTileBytes];                // LAYOUT: tiles.hpp
  TileInfo tiles[kStages];
  std::uint64_t full[kStages], empty[kStages], raw_full[kStages];
  BiasBuffers<kRows, kBias> bias;
};

}  // namespace flashrel::sm90::decode
