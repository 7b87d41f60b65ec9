// Shared memory of one CTA, and its barriers.
//
// BARRIERS (mbarriers unless said; "warp" = one lane of it arrives)
//   name          count  arrives                          waits
//   q_full          1    K loader + bytes of q and rel    consumers, to read Q and rel into registers
//   q_empty         8    consumer warps, Q is read        K loader
//   k_full[2]       1    K loader + bytes                 consumers
//   k_empty[2]      8    consumer warps, QK is complete   K loader
//   v_full[2]       1    V loader + bytes, or cleaner     consumers
//   v_empty[2]      8    consumer warps, PV is complete   V loader
//   dirty_full      1    V loader + bytes of a tile with  cleaner
//                        rows that nobody sees
//   dirty_empty     1    cleaner, rows are zero           V loader
//   job_full[4]     1    scheduler                        both loaders, consumers
//   job_empty[4]    8    consumer warps, result written   scheduler
//   job_taken       1    K loader, starts a job           scheduler: work is claimed as late as latency allows
//   named 1, 2    256    one warpgroup arrives, the       turns of warpgroup 0 and 1 at the tensor cores
//                        other syncs
//   named 3       256    consumers                        consumers: proj^T is complete
#pragma once

#include <cstdint>

#include "backend/sm90/prefill/job.hpp"
#include "backend/sm90/prefill/shear.hpp"
#include "backend/sm90/prefill/tiles.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kJobRing = 4;  // being finished, being computed, being loaded, being made
inline constexpr int kTurnBarrier = 1, kProjBarrier = 3;

struct DirtyTile {
  int stage = 0;  // -1 = no more
  Range seen;     // rows to keep
};

struct alignas(1024) Shared {
  std::uint8_t q[kQTileBytes];            // LAYOUT: tiles.hpp
  std::uint8_t k[kStages][kKvTileBytes];  // LAYOUT: tiles.hpp
  std::uint8_t v[kStages][kKvTileBytes];  // LAYOUT: tiles.hpp
  std::uint8_t rel[kRelTileBytes];        // LAYOUT: [packed row][16]
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  std::uint64_t dirty_full, dirty_empty;
  std::uint64_t job_full[kJobRing], job_empty[kJobRing], job_taken;
  Job jobs[kJobRing];
  DirtyTile dirty;
  alignas(128) std::uint8_t proj[];  // LAYOUT: [kProjPad + i][16] = rel_proj[:, i], zero rows around (shear.hpp)
};

constexpr int shared_bytes(int rel_extent) {
  return static_cast<int>(sizeof(Shared)) + (rel_extent > 0 ? proj_rows(rel_extent) * kRelRowBytes : 0);
}

}  // namespace flashrel::sm90::prefill
