// Every block finds all cuts by itself (a few microseconds at most), then writes its share of the items; block 0 also writes
// what there is once. Sequences are summed in chunks, one chunk a thread, so that a position is found by a search over chunks
// and a walk through one.
#include <cuda_runtime.h>

#include <cub/block/block_scan.cuh>
#include <cuda/std/functional>

#include "gpu/cuda_status.hpp"
#include "gpu/params.hpp"
#include "gpu/schedule.hpp"
#include "gpu/shares.hpp"
#include "index/shares.hpp"

namespace flashrel::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxBlocks = 32;

struct SharesParams : ScheduleTables {
  Share* shares;
  std::uint32_t* merge_counters;  // 2 * n_slots_max
};

// The cut that opens a share.
struct Cut {
  int unit = 0;         // that it falls into, in table order; -1 for the batch's beginning
  int at = 0;           // tiles into that unit
  bool inside = false;  // it makes one part more
};

struct TilesAndUnits {
  long long tiles = 0;
  int units = 0;
  __device__ TilesAndUnits operator+(const TilesAndUnits& other) const { return {tiles + other.tiles, units + other.units}; }
};
using BatchScan = cub::BlockScan<TilesAndUnits, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
using CutScan = cub::BlockScan<int, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

struct Shared {
  union {
    BatchScan::TempStorage batch_scan;
    CutScan::TempStorage cut_scan;
  };
  long long tile_begin[kThreads];  // of chunk i's first sequence
  int unit_begin[kThreads];        // likewise
  Cut cuts[kThreads + 1];          // of share i; one more behind the last
  int first_item[kThreads + 1];    // of share i
  int first_cut[kThreads];         // of the unit that cut i falls inside of
  int cut_of_merge[kThreads];      // first cut of the unit that stands at place i of the merge list
  int last_cut[kThreads];          // of the unit whose first cut is i
  int first_slot[kThreads];        // of the unit whose first cut is i
  int merge[kThreads];             // of the unit whose first cut is i: its place in the merge list
};

// Largest i in [0, n) with begins[i] <= x; begins[0] <= x.
template <class T>
__device__ int last_not_above(T x, const T* begins, int n) {
  int low = 0, high = n - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begins[middle] <= x)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

struct Batch {
  const SharesParams& p;
  const Shared& shared;
  int chunk_seqs;  // of a thread

  __device__ SeqTiles tiles_of(int seq) const { return seq_tiles(p.shape, p.batch.lengths(seq)); }
};

struct Place {
  int seq = 0;
  long long tile_begin = 0;  // of the sequence
  int unit_begin = 0;
};

// The sequence that holds tile `tile`.
__device__ Place find_tile(const Batch& batch, long long tile) {
  const int chunk = last_not_above(tile, batch.shared.tile_begin, kThreads);
  Place place{chunk * batch.chunk_seqs, batch.shared.tile_begin[chunk], batch.shared.unit_begin[chunk]};
  for (; place.seq < batch.p.shape.n_seqs; ++place.seq) {
    const SeqTiles all = batch.tiles_of(place.seq);
    if (tile < place.tile_begin + all.total()) break;
    place.tile_begin += all.total();
    place.unit_begin += all.n_units;
  }
  return place;
}

// The sequence that holds unit `unit`.
__device__ Place find_unit(const Batch& batch, int unit) {
  const int chunk = last_not_above(unit, batch.shared.unit_begin, kThreads);
  Place place{chunk * batch.chunk_seqs, batch.shared.tile_begin[chunk], batch.shared.unit_begin[chunk]};
  for (; place.seq < batch.p.shape.n_seqs; ++place.seq) {
    const SeqTiles all = batch.tiles_of(place.seq);
    if (unit < place.unit_begin + all.n_units) break;
    place.tile_begin += all.total();
    place.unit_begin += all.n_units;
  }
  return place;
}

__device__ Cut make_cut(const Batch& batch, long long total, int n_used, int share) {
  if (share == 0) return {-1, 0, false};
  const long long cut = even_cut(total, n_used, share);
  const Place place = find_tile(batch, cut - 1);
  const int n_tiles = batch.tiles_of(place.seq).tiles.size();
  const int unit = static_cast<int>((cut - 1 - place.tile_begin) / n_tiles);
  const long long at = cut - place.tile_begin - static_cast<long long>(unit) * n_tiles;
  const int moved = static_cast<int>(moved_cut(at, n_tiles, smallest_cut_unit(batch.p.shape, total, n_used)));
  return {place.unit_begin + unit, moved, moved > 0 && moved < n_tiles};
}

// Units that stand before a share's first item, the one that its cut falls inside of included.
__device__ int units_before(const Cut& cut) { return cut.unit + (cut.at > 0 || cut.unit < 0 ? 1 : 0); }

// Cuts, and what follows from them for items, slots and merges. Returns {items, slots, merges}.
struct Counts {
  int n_items, n_slots, n_merges;
};
__device__ Counts find_cuts(const Batch& batch, Shared& shared, long long total_tiles, int total_units, int n_used) {
  const int i = static_cast<int>(threadIdx.x);
  Cut cut;
  if (i < n_used) cut = make_cut(batch, total_tiles, n_used, i);
  shared.cuts[i] = cut;
  if (i == 0) shared.cuts[kThreads] = {};
  __syncthreads();
  const auto same_unit = [&](int a, int b) {
    return shared.cuts[a].inside && shared.cuts[b].inside && shared.cuts[a].unit == shared.cuts[b].unit;
  };
  const bool first = cut.inside && !(i > 0 && same_unit(i - 1, i)), last = cut.inside && !same_unit(i, i + 1);
  // Cuts inside units in the low half, units that begin to be cut in the high half: both at most kThreads.
  int upto, all;
  CutScan(shared.cut_scan).InclusiveSum(cut.inside + (first << 16), upto, all);
  const int n_inside = all & 0xffff, n_merges = all >> 16, merges_upto = upto >> 16;
  const int parts_before = (upto & 0xffff) - cut.inside;
  if (first) shared.cut_of_merge[merges_upto - 1] = i;
  __syncthreads();
  const int first_cut = merges_upto > 0 ? shared.cut_of_merge[merges_upto - 1] : 0;
  shared.first_item[i] = i < n_used ? units_before(cut) + parts_before : total_units + n_inside;
  if (i == 0) shared.first_item[kThreads] = total_units + n_inside;
  shared.first_cut[i] = first_cut;
  if (first) {
    shared.first_slot[i] = parts_before + merges_upto - 1;
    shared.merge[i] = merges_upto - 1;
  }
  if (last) shared.last_cut[first_cut] = i;
  __syncthreads();
  return {total_units + n_inside, n_inside + n_merges, n_merges};
}

// Item `index` of the table. It belongs to share `share`, whose first item it may be.
__device__ WorkItem item_at(const Batch& batch, const Shared& shared, int index, int share, Lengths& lengths) {
  const Cut cut = shared.cuts[share], next = shared.cuts[share + 1];
  const int in_share = index - shared.first_item[share];
  const bool continues = cut.inside && in_share == 0;  // begins where the cut falls
  const int unit = units_before(cut) + in_share - (cut.inside ? 1 : 0);
  const Place place = find_unit(batch, unit);
  lengths = batch.p.batch.lengths(place.seq);
  const Range tiles = seq_tiles(batch.p.shape, lengths).tiles;
  const bool goes_on = next.inside && next.unit == unit;  // in the next share
  WorkItem item = make_shared_item(batch.p.shape, lengths, place.seq, unit - place.unit_begin,
                                   {tiles.begin + (continues ? cut.at : 0), goes_on ? tiles.begin + next.at : tiles.end});
  if (continues || goes_on) {
    const int first = continues ? shared.first_cut[share] : share + 1;
    item.n_parts = shared.last_cut[first] - first + 2;
    item.part = continues ? share - first + 1 : 0;
    item.slot = shared.first_slot[first] + item.part;
  }
  return item;
}

// By one warp: what the CTA of share `share` needs to begin.
__device__ void write_share(const Batch& batch, const Shared& shared, int share, bool fits) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const SharesParams& p = batch.p;
  Share& to = p.shares[share];
  const int begin = shared.first_item[share], end = shared.first_item[share + 1];
  if (!fits || begin == end) {
    if (lane == 0) to.item_begin = to.item_end = 0;
    return;
  }
  Lengths lengths;
  const WorkItem item = item_at(batch, shared, begin, share, lengths);
  const int entry = p.batch.page_size.quotient(item.tile_begin * p.shape.tile_keys) + lane;
  const int last = p.batch.page_size.quotient(max_of(1, min_of(item.tile_end * p.shape.tile_keys, lengths.kv_len)) - 1);
  const bool needed = item.tile_begin < item.tile_end && entry <= last && entry < p.batch.max_pages;
  to.pages[lane] = needed ? p.batch.block_table[item.seq * p.batch.table_seq_stride + entry * p.batch.table_page_stride] : -1;
  if (lane != 0) return;
  to.item_begin = begin, to.item_end = end;
  to.first = item;
  to.kv_len = lengths.kv_len, to.q_len = lengths.q_len;
  to.first_token = p.batch.cu_q[item.seq * p.batch.cu_q_stride];
}

// Three blocks an SM: left to itself, ptxas squeezes the sm_100a code into 32 registers and spills.
__global__ void __launch_bounds__(kThreads, 3) shares_kernel(const __grid_constant__ SharesParams p) {
  alignas(Shared) __shared__ unsigned char shared_bytes[sizeof(Shared)];  // its members have initialisers
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  const Batch batch{p, shared, max_of(1, ceil_div(p.shape.n_seqs, kThreads))};

  TilesAndUnits sum, before, total;
  for (int i = 0; i < batch.chunk_seqs; ++i) {
    const int seq = thread * batch.chunk_seqs + i;
    if (seq >= p.shape.n_seqs) break;
    const SeqTiles all = batch.tiles_of(seq);
    sum = sum + TilesAndUnits{all.total(), all.n_units};
  }
  BatchScan(shared.batch_scan).ExclusiveScan(sum, before, TilesAndUnits{}, cuda::std::plus<>{}, total);
  shared.tile_begin[thread] = before.tiles;
  shared.unit_begin[thread] = before.units;
  __syncthreads();

  const int n_used = used_shares(p.shape, total.tiles);
  const Counts counts = find_cuts(batch, shared, total.tiles, total.units, n_used);
  // Lengths beyond the plan's bounds give an unspecified result, but never an access outside the tables.
  const bool fits = counts.n_items <= p.n_items_max && counts.n_slots <= p.n_slots_max;

  const int step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + thread; fits && i < counts.n_items; i += step) {
    const int share = last_not_above(i, shared.first_item, n_used);
    Lengths lengths;
    const WorkItem item = item_at(batch, shared, i, share, lengths);
    p.items[i] = item;
    if (item.n_parts > 1 && item.part == 0) p.merges[shared.merge[share + 1]] = i;
  }
  const int n_warps = step / 32;
  for (int share = (static_cast<int>(blockIdx.x) * kThreads + thread) / 32; share < p.shape.n_shares; share += n_warps)
    write_share(batch, shared, share, fits);
  for (std::int64_t i = static_cast<int>(blockIdx.x) * kThreads + thread; i < 2 * p.n_slots_max; i += step)
    p.merge_counters[i] = 0;
  if (blockIdx.x == 0 && thread == 0)
    *p.header = fits ? ScheduleHeader{counts.n_items, counts.n_slots, counts.n_merges, 0} : ScheduleHeader{0, 0, 0, 0};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // SYNC: a kernel launched to overlap with this one may read the tables as soon as it runs (past L1).
  __threadfence();
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace

void book_shares(Plan& plan) {
  plan.schedule_memory.book(std::string(kSharesEntry), static_cast<std::size_t>(plan.schedule.n_shares) * sizeof(Share));
  plan.schedule_memory.book(std::string(kMergeCountersEntry), static_cast<std::size_t>(2 * plan.bounds.n_slots) * 4);
}

Status launch_shares(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream) {
  static_assert(kMaxShares <= kThreads);
  const SharesParams p{make_schedule_tables(problem, tensors, plan, schedule),
                       plan.schedule_memory.at<Share>(schedule, kSharesEntry),
                       plan.schedule_memory.at<std::uint32_t>(schedule, kMergeCountersEntry)};
  // A thread an item, a warp a share.
  const std::int64_t by_items = ceil_div<std::int64_t>(plan.bounds.n_items, kThreads);
  const std::int64_t by_shares = ceil_div(plan.schedule.n_shares, kThreads / 32);
  const auto n_blocks = clamp_to<std::int64_t>(max_of(by_items, by_shares), 1, kMaxBlocks);
  shares_kernel<<<static_cast<unsigned>(n_blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return launch_status("shares_kernel");
}

}  // namespace flashrel::gpu
