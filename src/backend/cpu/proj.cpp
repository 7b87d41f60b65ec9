#include "backend/cpu/proj.hpp"

#include <cstring>

#include "base/parallel.hpp"

namespace flashrel::cpu {
namespace {

// Distances of the table that some call within the bounds can see; where there is none, the entry nearest to what is seen.
Range reachable(const Problem& p) {
  const auto bound = [](std::int64_t x) { return static_cast<int>(clamp_to<std::int64_t>(x, -kFar, kFar)); };
  const Range table{bound(-p.rel_zero), bound(p.rel_extent - p.rel_zero)};
  const Range seen = intersect({-static_cast<int>(p.max_seqlen_q), static_cast<int>(p.max_seqlen_k)}, p.visible);
  const Range both = intersect(table, seen);
  if (!both.empty()) return both;
  return seen.begin >= table.end ? Range{table.end - 1, table.end} : Range{table.begin, table.begin + 1};
}

// Columns past either end that a row block may touch.
constexpr int kMargin = kStepKeys + kBiasSlack + kPanel;

struct Packing {
  const Problem* problem;
  const Tensors* tensors;
  PackedProj proj;
  bool bf16;
  void* memory;
};

constexpr int kPanelsPerTask = 64;

void pack_panels(void* context, int task) {
  const Packing& c = *static_cast<const Packing*>(context);
  const Problem& p = *c.problem;
  const int n_panels = c.proj.n_columns / kPanel, depth = c.proj.d_rel_padded;
  const std::size_t panel_elems = static_cast<std::size_t>(depth) * kPanel;
  for (int panel = task * kPanelsPerTask; panel < min_of(n_panels, (task + 1) * kPanelsPerTask); ++panel) {
    auto* as_float = static_cast<float*>(c.memory) + static_cast<std::size_t>(panel) * panel_elems;
    auto* as_bf16 = static_cast<std::uint16_t*>(c.memory) + static_cast<std::size_t>(panel) * panel_elems;
    std::memset(c.bf16 ? static_cast<void*>(as_bf16) : as_float, 0, panel_elems * (c.bf16 ? 2 : 4));
    for (int i = 0; i < kPanel; ++i) {
      const int dist = c.proj.dist_max - (panel * kPanel + i);
      if (!p.band.contains(dist)) continue;
      const std::int64_t index = bias_index(dist, p.rel_zero, p.rel_extent);
      for (int e = 0; e < p.d_rel; ++e) {
        const std::int64_t at = e * p.strides.rel_proj_row + index;
        if (c.bf16)
          as_bf16[(e / 2) * 2 * kPanel + 2 * i + e % 2] = static_cast<const std::uint16_t*>(c.tensors->rel_proj)[at];
        else
          as_float[e * kPanel + i] = load_float(c.tensors->rel_proj, p.dtype, at);
      }
    }
  }
}

// Rows of pairs, each twice: as it is and one column on.
void pack_direct(const Packing& c) {
  const Problem& p = *c.problem;
  auto* out = static_cast<std::uint16_t*>(c.memory);
  const auto* in = static_cast<const std::uint16_t*>(c.tensors->rel_proj);
  const std::ptrdiff_t row_elems = 2 * static_cast<std::ptrdiff_t>(c.proj.n_columns);
  std::memset(out, 0, static_cast<std::size_t>(16 * row_elems) * sizeof(std::uint16_t));
  for (int e = 0; e < p.d_rel; ++e) {
    std::uint16_t* row = out + e / 2 * row_elems + e % 2;
    for (int column = 0; column < c.proj.n_columns; ++column) {
      const int dist = c.proj.dist_max - column;
      if (!p.band.contains(dist)) continue;
      row[2 * column] = in[e * p.strides.rel_proj_row + bias_index(dist, p.rel_zero, p.rel_extent)];
    }
    std::uint16_t* next = row + 8 * row_elems;
    for (int column = 1; column < c.proj.n_columns; ++column) next[2 * column] = row[2 * (column - 1)];
  }
}

int n_columns(const Problem& p) { return round_up(reachable(p).size() + 2 * kMargin, kKeyStep); }

}  // namespace

std::size_t packed_proj_bytes(const Problem& p) {
  if (p.bias != BiasMode::kFused) return 0;
  return static_cast<std::size_t>(n_columns(p)) * static_cast<std::size_t>(round_up(p.d_rel, kKeyStep)) * sizeof(float);
}

PackedProj pack_proj(const Problem& p, const Tensors& tensors, const IsaKernels& kernels, void* memory) {
  PackedProj proj;
  proj.data = memory;
  proj.n_columns = n_columns(p);
  proj.exact = reachable(p);
  proj.dist_max = proj.exact.end - 1 + kMargin;
  proj.d_rel_padded = round_up(p.d_rel, kKeyStep);
  proj.direct = kernels.direct_bias && direct_bias(p);
  Packing packing{&p, &tensors, proj, kernels.bf16_operands, memory};
  if (proj.direct) {
    pack_direct(packing);
    return proj;
  }
  parallel_for(ceil_div(proj.n_columns / kPanel, kPanelsPerTask), &pack_panels, &packing);
  return proj;
}

}  // namespace flashrel::cpu
