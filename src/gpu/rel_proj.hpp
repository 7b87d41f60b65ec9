// rel_proj (d_rel, extent) re-laid for the matrix units: one row of 16 values of e for every index of L, with edge rows on
// both sides, so that the fused bias of any run of up to kProjPad keys is read without bounds checks (index/shear.hpp).
//
// LAYOUT: [step][kProjPad + index][16], step = e / 16; 16-bit elements; zeros where e >= d_rel. Rows outside [0, extent) are
// zeros (edge zero) or copies of the nearest row (edge clamp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.hpp"
#include "base/status.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel::gpu {

inline constexpr int kProjPad = 64;
inline constexpr int kRelStep = 16;  // values of e that one matrix instruction sums over

FLASHREL_HD constexpr std::int64_t packed_proj_rows(std::int64_t extent) { return extent + 2 * kProjPad; }
inline std::size_t packed_proj_bytes(std::int64_t extent, int d_rel) {
  return static_cast<std::size_t>(packed_proj_rows(extent) * ((d_rel + kRelStep - 1) / kRelStep) * kRelStep) * 2;
}

Status launch_pack_rel_proj(const Problem& problem, const Tensors& tensors, void* packed, void* stream);

}  // namespace flashrel::gpu
