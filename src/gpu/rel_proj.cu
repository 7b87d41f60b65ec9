#include <cuda_runtime.h>

#include "gpu/cuda_status.hpp"
#include "gpu/rel_proj.hpp"
#include "index/shear.hpp"

namespace flashrel::gpu {
namespace {

struct PackParams {
  const std::uint16_t* proj;  // (d_rel, extent), 16-bit elements of either type
  std::int64_t row_stride;
  std::uint16_t* packed;
  int extent, d_rel;
  bool clamped;
};

// One thread an index: reads are coalesced along the extent, writes are rows of 32 bytes.
__global__ void pack_rel_proj_kernel(const PackParams p) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int n_rows = p.extent + 2 * kProjPad, step = static_cast<int>(blockIdx.y);
  if (row >= n_rows) return;
  const int index = row - kProjPad, entry = nearest_entry(index, p.extent);
  const bool reads = reads_entry(index, p.extent, p.clamped);
  alignas(16) std::uint16_t values[kRelStep];
#pragma unroll
  for (int i = 0; i < kRelStep; ++i) {
    const int e = step * kRelStep + i;
    values[i] = reads && e < p.d_rel ? p.proj[e * p.row_stride + entry] : std::uint16_t{0};
  }
  auto* out = reinterpret_cast<uint4*>(p.packed + (static_cast<std::int64_t>(step) * n_rows + row) * kRelStep);
  out[0] = reinterpret_cast<const uint4*>(values)[0];
  out[1] = reinterpret_cast<const uint4*>(values)[1];
}

}  // namespace

Status launch_pack_rel_proj(const Problem& problem, const Tensors& tensors, void* packed, void* stream) {
  const bool clamped = problem.band == band_distances(0, 1, RelEdge::kClamp);
  const PackParams p{static_cast<const std::uint16_t*>(tensors.rel_proj),
                     problem.strides.rel_proj_row,
                     static_cast<std::uint16_t*>(packed),
                     static_cast<int>(problem.rel_extent),
                     problem.d_rel,
                     clamped};
  constexpr unsigned kThreads = 64;
  const auto n_rows = static_cast<unsigned>(packed_proj_rows(problem.rel_extent));
  const dim3 grid((n_rows + kThreads - 1) / kThreads, static_cast<unsigned>((problem.d_rel + kRelStep - 1) / kRelStep));
  pack_rel_proj_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return launch_status("pack_rel_proj_kernel");
}

}  // namespace flashrel::gpu
