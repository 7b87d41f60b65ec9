// Class of cost after class (there is one, unless the shape says by_cost), sequences are taken kThreads at a time, their row
// tiles ("units") kThreads at a time; block-wide prefix sums give every unit its first item, slot and merge entry, then all
// threads write items side by side. Every block counts the whole batch and writes its share of the items, so that none waits
// for another: items are many (4,096 at 8K tokens of 16 KV heads), and one SM writes them slower than it counts.
#include <cuda_runtime.h>

#include <cub/block/block_scan.cuh>

#include "gpu/cuda_status.hpp"
#include "gpu/params.hpp"
#include "gpu/schedule.hpp"
#include "index/schedule.hpp"

namespace flashrel::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxBlocks = 8;

struct Unit {
  UnitShape shape;
  int first_slot;  // of KV head 0
  int first_merge;
};

using Scan = cub::BlockScan<long long, kThreads>;

struct Shared {
  Scan::TempStorage scan;
  Unit units[kThreads];
  int item_end[kThreads];  // items of units [0, i], counted from the first unit of this round
  Lengths lengths[kThreads];
  int unit_end[kThreads];  // units of sequences [0, i], counted from the first sequence of this chunk
  unsigned classes;        // of find_classes
};

// Smallest i with x < ends[i].
__device__ int owner_of(int x, const int* ends, int n) {
  int low = 0, high = n - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (x < ends[middle])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

__device__ long long scan(Shared& shared, long long value, long long& total) {
  long long before;
  __syncthreads();
  Scan(shared.scan).ExclusiveSum(value, before, total);
  __syncthreads();
  return before;
}

// Calls body(seq, row_tile, lengths, valid, n_in_round) with a whole block: unit i of a round goes to thread i, in table order.
// takes(lengths): whether the sequence is one of those asked for.
template <class Takes, class Body>
__device__ void for_each_unit(const ScheduleTables& p, Shared& shared, Takes&& takes, Body&& body) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int first_seq = 0; first_seq < p.shape.n_seqs; first_seq += kThreads) {
    const int seq = first_seq + thread;
    const Lengths mine = seq < p.shape.n_seqs ? served_lengths(p.shape, p.batch.lengths(seq)) : Lengths{};
    const int n_row_tiles = mine.q_len > 0 && takes(mine) ? row_tiles(mine.q_len, p.shape.group, p.shape.tile_rows) : 0;
    long long total;
    const long long before = scan(shared, n_row_tiles, total);
    shared.lengths[thread] = mine;
    shared.unit_end[thread] = static_cast<int>(before) + n_row_tiles;
    __syncthreads();
    for (int first_unit = 0; first_unit < total; first_unit += kThreads) {
      const int unit = first_unit + thread;
      const bool valid = unit < total;
      const int owner = valid ? owner_of(unit, shared.unit_end, kThreads) : 0;
      // Row tiles of a sequence come last to first.
      const int row_tile = valid ? shared.unit_end[owner] - 1 - unit : 0;
      body(first_seq + owner, row_tile, shared.lengths[owner], valid, min_of(kThreads, static_cast<int>(total) - first_unit));
    }
    __syncthreads();
  }
}

// Bit c: some sequence with rows is of class c.
__device__ unsigned find_classes(const ScheduleTables& p, Shared& shared, int auto_tiles) {
  if (p.shape.by_cost == 0) return 1;
  if (threadIdx.x == 0) shared.classes = 0;
  __syncthreads();
  for (int seq = static_cast<int>(threadIdx.x); seq < p.shape.n_seqs; seq += kThreads) {
    const Lengths lengths = served_lengths(p.shape, p.batch.lengths(seq));
    if (lengths.q_len > 0) atomicOr(&shared.classes, 1u << cost_class(p.shape, lengths, auto_tiles));
  }
  __syncthreads();
  return shared.classes;
}

__global__ void __launch_bounds__(kThreads, 1) schedule_kernel(const __grid_constant__ ScheduleTables p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // A kernel launched to overlap with this one may take its place on the other SMs; it waits before it reads the table.
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  alignas(Shared) __shared__ unsigned char shared_bytes[sizeof(Shared)];  // its members have initialisers
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const ScheduleShape& shape = p.shape;
  const int thread = static_cast<int>(threadIdx.x);

  int auto_tiles = 0;
  if (shape.target_parts > 0) {
    long long tiles = 0, total;
    const auto takes_all = [](Lengths) { return true; };
    for_each_unit(p, shared, takes_all, [&](int, int row_tile, Lengths lengths, bool valid, int) {
      if (valid) tiles += unit_tiles(shape, lengths, row_tile).size();
    });
    scan(shared, tiles, total);
    auto_tiles = auto_tiles_per_part(shape, total * shape.n_kv_heads);
  }

  long long n_items = 0, n_slots = 0, n_merges = 0;
  const auto write_items = [&](int seq, int row_tile, Lengths lengths, bool valid, int n_units) {
    Unit unit{};
    if (valid) unit.shape = make_unit(shape, lengths, seq, row_tile, auto_tiles);
    const int n_parts = valid ? unit.shape.n_parts : 0;
    const bool cut = n_parts > 1;
    long long items_total, slots_total, merges_total;
    const long long items_before = scan(shared, static_cast<long long>(n_parts) * shape.n_kv_heads, items_total);
    unit.first_slot =
        static_cast<int>(n_slots + scan(shared, cut ? static_cast<long long>(n_parts) * shape.n_kv_heads : 0, slots_total));
    unit.first_merge = static_cast<int>(n_merges + scan(shared, cut ? shape.n_kv_heads : 0, merges_total));
    shared.units[thread] = unit;
    shared.item_end[thread] = static_cast<int>(items_before) + n_parts * shape.n_kv_heads;
    __syncthreads();
    for (int i = thread + static_cast<int>(blockIdx.x) * kThreads; i < items_total;
         i += kThreads * static_cast<int>(gridDim.x)) {
      const int owner = owner_of(i, shared.item_end, n_units);
      const Unit& u = shared.units[owner];
      const int n_unit_parts = u.shape.n_parts;
      const int in_unit = i - (shared.item_end[owner] - n_unit_parts * shape.n_kv_heads);
      const int kv_head = n_unit_parts == 1 ? in_unit : in_unit / n_unit_parts, part = in_unit - kv_head * n_unit_parts;
      const long long index = n_items + i;
      const int first_slot = n_unit_parts > 1 ? u.first_slot + kv_head * n_unit_parts : -1;
      if (index >= p.n_items_max || first_slot + n_unit_parts > p.n_slots_max + (n_unit_parts == 1)) continue;
      p.items[index] = make_item(u.shape, kv_head, part, first_slot);
      if (n_unit_parts > 1 && part == 0) p.merges[u.first_merge + kv_head] = static_cast<int>(index);
    }
    n_items += items_total;
    n_slots += slots_total;
    n_merges += merges_total;
    __syncthreads();
  };
  for (unsigned left = find_classes(p, shared, auto_tiles); left != 0;) {
    const int cost = 31 - __clz(static_cast<int>(left));  // the costliest first
    left ^= 1u << cost;
    for_each_unit(p, shared, [&](Lengths lengths) { return cost_class(shape, lengths, auto_tiles) == cost; }, write_items);
  }

  if (thread == 0 && blockIdx.x == 0) {
    // Lengths beyond the plan's bounds give an unspecified result, but never an access outside the tables.
    const bool fits = n_items <= p.n_items_max && n_slots <= p.n_slots_max;
    *p.header = fits ? ScheduleHeader{static_cast<int>(n_items), static_cast<int>(n_slots), static_cast<int>(n_merges), 0}
                     : ScheduleHeader{0, 0, 0, 0};
  }
}

}  // namespace

ScheduleTables make_schedule_tables(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule) {
  return {plan.schedule,
          make_batch_params(problem, tensors),
          plan.schedule_memory.at<WorkItem>(schedule, kItemsEntry),
          plan.bounds.n_items,
          plan.bounds.n_slots,
          plan.schedule_memory.at<std::int32_t>(schedule, kMergeListEntry),
          plan.schedule_memory.at<ScheduleHeader>(schedule, kScheduleHeaderEntry)};
}

Status launch_schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream) {
  const ScheduleTables tables = make_schedule_tables(problem, tensors, plan, schedule);
  const auto n_blocks = static_cast<unsigned>(clamp_to<std::int64_t>(plan.bounds.n_items / kThreads, 1, kMaxBlocks));
  schedule_kernel<<<n_blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(tables);
  return launch_status("schedule_kernel");
}

}  // namespace flashrel::gpu
