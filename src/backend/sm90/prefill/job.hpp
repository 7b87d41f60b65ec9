// Job: one work item as the loader and the consumers read it, made once by the scheduler warp. Host + device; job_test.cpp
// compares it with index/ranges.hpp's classify for every tile.
#pragma once

#include "backend/sm90/prefill/tiles.hpp"
#include "index/ranges.hpp"
#include "index/schedule.hpp"

namespace flashrel::sm90::prefill {

// Key tiles are visited from last to first, in four loops: [masked_to, end) with mask and bias, [biased_to, masked_to) with
// bias, [plain_to, biased_to) with neither, [begin, plain_to) with mask and bias again. All tile numbers are absolute.
struct TileLoops {
  int masked_to = 0, biased_to = 0, plain_to = 0;
  FLASHREL_HD constexpr bool masked(int tile) const { return tile >= masked_to || tile < plain_to; }
  FLASHREL_HD constexpr bool biased(int tile) const { return tile >= biased_to || tile < plain_to; }
};

struct Job {
  int n_rows = 0;  // packed rows that exist; 0 = no more jobs
  int seq = 0, kv_head = 0, slot = -1;
  int first_token = 0;  // row of q and out
  int first_pos = 0;    // q_pos of that token
  int kv_len = 0;
  Range tiles;  // to visit; never empty in a job that is handed on
  TileLoops loops;
  Range seen;  // keys that some row of the whole sequence sees
};

// The group is a power of two here, so that rows become tokens by a shift.
// Written field by field: the scheduler warp has few registers.
FLASHREL_HD constexpr void make_job(const WorkItem& item, Lengths lengths, int seq_begin, int group_log2, Range visible,
                                    Range band, int tile_keys, Job& job) {
  const int first_token = item.row_tile * (kTileRows >> group_log2);
  const Range tokens{first_token, first_token + ((item.n_rows + (1 << group_log2) - 1) >> group_log2)};
  job.n_rows = item.n_rows;
  job.seq = item.seq;
  job.kv_head = item.kv_head;
  job.slot = item.slot;
  job.first_token = seq_begin + tokens.begin;
  job.first_pos = q_pos(tokens.begin, lengths);
  job.kv_len = lengths.kv_len;
  job.tiles = {item.tile_begin, item.tile_end};
  // Tiles that hide no pair.
  const Range full_tiles = inner_tiles(full_keys(tokens, lengths, visible), tile_keys);
  // The smallest distance of a tile is q_pos(first token) - its last key; tiles below this one lie wholly past the band.
  const long long smallest_key = static_cast<long long>(job.first_pos) - band.end + 1;
  const int band_begin = static_cast<int>(floor_div<long long>(smallest_key, tile_keys));
  // The tile that is visited first takes mask and bias whatever it holds: it shares its code with the end of the job before.
  job.loops.masked_to = clamp_to(full_tiles.end, job.tiles.begin, job.tiles.end - 1);
  job.loops.plain_to = max_of(job.tiles.begin, min_of(full_tiles.begin, job.loops.masked_to));
  job.loops.biased_to = clamp_to(band_begin, job.loops.plain_to, job.loops.masked_to);
  job.seen = visible_keys({0, lengths.q_len}, lengths, visible);
}

}  // namespace flashrel::sm90::prefill
