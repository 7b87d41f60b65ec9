// Shared memory of one CTA, and its barriers.
//
// BARRIERS (mbarriers unless said; "warp" = one lane of it arrives)
//   name          count  arrives                          waits
//   q_full          1    K loader + bytes of q and rel    consumers, to read Q and rel into registers
//   q_empty         8    consumer warps, Q is read        K loader
//   k_full[2]       1    K loader + bytes                 consumers
//   k_empty[2]      8    consumer warps, QK is complete   K loader
//   v_full[2]       1    V loader + bytes, or follower    consumers
//   v_empty[2]      8    consumer warps, PV is complete   V loader
//   logits_full[15] 1    follower + bytes of rel_logits   the slot's consumer warp
//   logits_empty[15] 1   that warp, its bias is read      follower
//   dirty_full      1    V loader + bytes of a tile with  follower
//                        rows that nobody sees
//   dirty_empty     1    follower, rows are zero          V loader
//   job_full[4]     1    scheduler, or K loader (own_job) both loaders, follower, consumers
//   job_empty[4]    9    consumer warps, result written;  scheduler
//                        follower, is past the job
//   job_taken       1    K loader, starts a job           scheduler: work is claimed as late as latency allows
//   named 1, 2    256    one warpgroup arrives, the       turns of warpgroup 0 and 1 at the tensor cores; without turns
//                        other syncs                      only barrier 2, once: warpgroup 1 begins after warpgroup 0
//   named 3       256    consumers                        consumers: proj^T is complete
#pragma once

#include <cstdint>

#include "backend/sm90/prefill/job.hpp"
#include "backend/sm90/prefill/logits.hpp"
#include "backend/sm90/prefill/shear.hpp"
#include "backend/sm90/prefill/tiles.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kJobRing = 4;  // being finished, being computed, being loaded, being made
inline constexpr int kTurnBarrier = 1, kProjBarrier = 3;

template <int kDim, int kTileKeys>
struct alignas(1024) Shared {
  static constexpr int kHeadDim = kDim, kKeys = kTileKeys;
  static constexpr int kKvBytes = kv_tile_bytes(kDim, kTileKeys);
  std::uint8_t q[q_tile_bytes(kDim)];  // LAYOUT: tiles.hpp
  std::uint8_t k[kStages][kKvBytes];   // LAYOUT: tiles.hpp
  std::uint8_t v[kStages][kKvBytes];   // LAYOUT: tiles.hpp
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  std::uint64_t logits_full[kMaxLogitsSlots], logits_empty[kMaxLogitsSlots];
  std::uint64_t dirty_full, dirty_empty;
  std::uint64_t job_full[kJobRing], job_empty[kJobRing], job_taken;
  Job jobs[kJobRing];
  // LAYOUT, mode fused: rel [packed row][d], then proj^T [kProjPad + i][d] = rel_proj[:, i], and rows around (shear.hpp); d =
  // 16 or 32. Mode logits: a ring of slots (logits.hpp).
  alignas(1024) std::uint8_t bias[];

  __device__ __forceinline__ std::uint8_t* rel() { return bias; }
  __device__ __forceinline__ std::uint8_t* proj(int steps) { return bias + rel_tile_bytes(steps); }
};
template <int kDim, int kTileKeys>
inline constexpr bool kSizeIsRight = sizeof(Shared<kDim, kTileKeys>) == shared_bytes(kDim, kTileKeys);
static_assert(kSizeIsRight<128, 128> && kSizeIsRight<128, 96> && kSizeIsRight<64, 128>);

}  // namespace flashrel::sm90::prefill
