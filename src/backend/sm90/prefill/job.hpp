// Job: one work item as the loader and the consumers read it, made once by the scheduler warp. Host + device; job_test.cpp
// compares it with index/ranges.hpp's classify for every tile.
#pragma once

#include "backend/sm90/prefill/tiles.hpp"
#include "index/ranges.hpp"
#include "index/schedule.hpp"

namespace flashrel::sm90::prefill {

// Key tiles are visited from last to first. All tile numbers are absolute.
struct Job {
  int n_rows = 0;  // packed rows that exist; 0 = no more jobs
  int seq = 0, kv_head = 0, slot = -1;
  int first_token = 0;  // row of q and out
  int first_pos = 0;    // q_pos of that token
  int kv_len = 0;
  Range tiles;         // to visit; never empty in a job that is handed on
  Range full_tiles;    // hide no pair
  int band_begin = 0;  // tiles below lie wholly past the band (biases all 0)
  Range seen;          // keys that some row of the whole sequence sees
};

// The group is a power of two here, so that rows become tokens by a shift.
// Written field by field: the scheduler warp has few registers.
FLASHREL_HD constexpr void make_job(const WorkItem& item, Lengths lengths, int seq_begin, int group_log2, Range visible,
                                    Range band, Job& job) {
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
  const Range full = full_keys(tokens, lengths, visible);
  job.full_tiles = {ceil_div(full.begin, kTileKeys), full.end / kTileKeys};
  if (full.empty()) job.full_tiles = {0, 0};
  // The smallest distance of a tile is q_pos(first token) - its last key; it must stay below the band's end.
  const long long smallest_key = static_cast<long long>(job.first_pos) - band.end + 1;
  job.band_begin = static_cast<int>(floor_div<long long>(smallest_key, kTileKeys));
  job.seen = visible_keys({0, lengths.q_len}, lengths, visible);
}

}  // namespace flashrel::sm90::prefill
