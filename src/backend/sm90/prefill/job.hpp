// Job: one work item as the loader and the consumers read it, made once by the scheduler warp. Host + device; job_test.cpp
// compares it with index/ranges.hpp's classify for every tile.
#pragma once

#include "backend/sm90/prefill/tiles.hpp"
#include "index/ranges.hpp"
#include "index/schedule.hpp"

namespace flashrel::sm90::prefill {

// Key tiles are visited from last to first, in four loops: [masked_to, end) with mask and bias, [biased_to, masked_to) with
// bias, [plain_to, biased_to) with neither, [begin, plain_to) with mask and bias again.
struct TileLoops {
  int masked_to = 0, biased_to = 0, plain_to = 0;
  FLASHREL_HD constexpr bool masked(int tile) const { return tile >= masked_to || tile < plain_to; }
  FLASHREL_HD constexpr bool biased(int tile) const { return tile >= biased_to || tile < plain_to; }
  constexpr bool operator==(const TileLoops&) const = default;
};

struct Job {
  int n_rows = 0;  // packed rows that exist; 0 = no more jobs
  int seq = 0, kv_head = 0, slot = -1;
  int first_token = 0;  // row of q and out
  // Keys and tiles count from first_key: where the window of an uncut item begins, so that it meets as few tiles as it can (a
  // window of 512 keys and 32 tokens 4.5 tiles, where tiles of a fixed grid would be 5.2).
  int first_key = 0;
  int first_pos = 0;  // q_pos of first_token
  int kv_len = 0;
  Range tiles;  // to visit; never empty in a job that is handed on
  // The job's keys end in the lower half of the tile that is visited first: of K, the upper half is neither loaded nor
  // multiplied.
  int first_is_half = 0;
  TileLoops loops;
  Range seen;  // keys that some row of the whole sequence sees, from first_key on
  constexpr bool operator==(const Job&) const = default;
};

// What a job depends on besides its item and the lengths. The group is a power of two here, so that rows become tokens by a
// shift.
struct JobRules {
  int group_log2 = 0;
  Range visible, band;  // distances
  int tile_keys = 0;
  bool halves = false;  // whether a tile may be halved
};

// Row tiles of a sequence: each holds a whole number of tokens.
FLASHREL_HD constexpr int token_tiles(int q_len, int group_log2) {
  const int tile_tokens_log2 = kTileRowsLog2 - group_log2;
  return (max_of(q_len, 0) + (1 << tile_tokens_log2) - 1) >> tile_tokens_log2;
}

// The item of a unit that is not cut, but for its key tiles, which make_job finds. The row tile exists.
FLASHREL_HD constexpr WorkItem whole_item(int seq, int kv_head, int row_tile, Lengths lengths, int group_log2) {
  const int first_token = row_tile << (kTileRowsLog2 - group_log2);
  WorkItem item;
  item.seq = seq;
  item.kv_head = kv_head;
  item.row_tile = row_tile;
  item.tile_end = 1;
  item.n_rows = min_of(lengths.q_len - first_token, kTileRows >> group_log2) << group_log2;
  return item;
}

// Written field by field: the scheduler warp has few registers.
FLASHREL_HD constexpr void make_job(const WorkItem& item, Lengths lengths, int seq_begin, const JobRules& rules, Job& job) {
  const int first_token = item.row_tile * (kTileRows >> rules.group_log2);
  const Range tokens{first_token, first_token + ((item.n_rows + (1 << rules.group_log2) - 1) >> rules.group_log2)};
  job.n_rows = item.n_rows;
  job.seq = item.seq;
  job.kv_head = item.kv_head;
  job.slot = item.slot;
  job.first_token = seq_begin + tokens.begin;
  job.first_key = 0;
  job.first_is_half = 0;
  job.tiles = {item.tile_begin, item.tile_end};
  if (item.slot < 0 && item.tile_begin < item.tile_end) {
    const Range keys = visible_keys(tokens, lengths, rules.visible);
    job.first_key = keys.begin / kBoxKeys * kBoxKeys;
    const int n_keys = keys.end - job.first_key;
    job.tiles = {0, ceil_div(n_keys, rules.tile_keys)};
    job.first_is_half = rules.halves && n_keys - (job.tiles.end - 1) * rules.tile_keys <= rules.tile_keys / 2 ? 1 : 0;
  }
  lengths.kv_len -= job.first_key;  // all that follows counts from first_key
  job.first_pos = q_pos(tokens.begin, lengths);
  job.kv_len = lengths.kv_len;
  // Tiles that hide no pair. The tile that is visited first takes mask and bias whatever it holds: it shares its code with the
  // end of the job before.
  const Range full_tiles = inner_tiles(full_keys(tokens, lengths, rules.visible), rules.tile_keys);
  job.loops.masked_to = clamp_to(full_tiles.end, job.tiles.begin, job.tiles.end - 1);
  job.loops.plain_to = max_of(job.tiles.begin, min_of(full_tiles.begin, job.loops.masked_to));
  // The smallest distance of a tile is q_pos(first token) - its last key; tiles below this one lie wholly past the band.
  const long long smallest_key = static_cast<long long>(job.first_pos) - rules.band.end + 1;
  const int band_begin = static_cast<int>(floor_div<long long>(smallest_key, rules.tile_keys));
  job.loops.biased_to = clamp_to(band_begin, job.loops.plain_to, job.loops.masked_to);
  job.seen = visible_keys({0, lengths.q_len}, lengths, rules.visible);
}

}  // namespace flashrel::sm90::prefill
