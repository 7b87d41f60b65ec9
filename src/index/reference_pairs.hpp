// The dumb reference of the index tests: the operator's rules written out literally for one distance, and counts of
// pairs taken from a table of these answers. Shares no formula with the code under test.
#pragma once

#include <algorithm>
#include <ostream>
#include <vector>

#include "base/types.hpp"
#include "index/distance.hpp"

namespace flashrel::reference {

struct Rule {
  bool causal = true;
  int window_left = -1, window_right = -1;
  int rel_zero = 0, rel_extent = 0;
  RelEdge edge = RelEdge::kZero;

  bool sees(int dist) const {
    if (causal && dist < 0) return false;
    if (window_left >= 0 && dist > window_left) return false;
    if (window_right >= 0 && -dist > window_right) return false;
    return true;
  }
  bool biases(int dist) const {
    if (rel_extent == 0) return false;
    if (edge == RelEdge::kClamp) return true;
    return 0 <= dist + rel_zero && dist + rel_zero < rel_extent;
  }
  Range visible() const { return visible_distances(causal, window_left, window_right); }
  Range band() const { return band_distances(rel_zero, rel_extent, edge); }
};

inline std::ostream& operator<<(std::ostream& os, const Rule& r) {
  return os << "causal=" << r.causal << " window=" << r.window_left << "," << r.window_right << " rel_zero=" << r.rel_zero
            << " extent=" << r.rel_extent << (r.edge == RelEdge::kClamp ? " edge=clamp" : "");
}

// Windows that stand on, beside and far from a tile's edge, causal and not.
inline std::vector<Rule> windows(int tile) {
  std::vector<Rule> rules;
  for (int left : {-1, 0, 1, tile - 1, tile, tile + 1, 1000}) {
    rules.push_back({.causal = true, .window_left = left});
    for (int right : {-1, 0, 1, tile}) rules.push_back({.causal = false, .window_left = left, .window_right = right});
  }
  return rules;
}

// Bands that stand on, beside and far from a tile's edge.
inline std::vector<Rule> bands(int tile) {
  std::vector<Rule> rules;
  for (int extent : {0, 1, tile - 1, tile, tile + 1, 1000})
    for (int zero : {0, 1, tile, 500})
      for (RelEdge edge : {RelEdge::kZero, RelEdge::kClamp})
        rules.push_back({.rel_zero = zero, .rel_extent = extent, .edge = edge});
  return rules;
}

inline Rule join(Rule window, const Rule& band) {
  window.rel_zero = band.rel_zero;
  window.rel_extent = band.rel_extent;
  window.edge = band.edge;
  return window;
}

// How many distances of [low, high] satisfy a rule, for |distance| <= kReach.
class DistanceCounts {
 public:
  static constexpr int kReach = 700;

  explicit DistanceCounts(const Rule& rule) : visible_(2 * kReach + 2), biased_(2 * kReach + 2) {
    for (int i = 0; i <= 2 * kReach; ++i) {
      const int dist = i - kReach;
      visible_[i + 1] = visible_[i] + rule.sees(dist);
      biased_[i + 1] = biased_[i] + (rule.sees(dist) && rule.biases(dist));
    }
  }
  int visible(int low, int high) const { return visible_[high + kReach + 1] - visible_[low + kReach]; }
  int biased(int low, int high) const { return biased_[high + kReach + 1] - biased_[low + kReach]; }

 private:
  std::vector<int> visible_, biased_;  // of all distances below
};

// Visible and biased pairs of every rectangle [0, token) x key tile of one sequence.
class PairCounts {
 public:
  void fill(const DistanceCounts& counts, Lengths lengths, int tile_keys) {
    n_tiles_ = (lengths.kv_len + tile_keys - 1) / tile_keys;
    visible_.assign(static_cast<std::size_t>((lengths.q_len + 1) * n_tiles_), 0);
    biased_ = visible_;
    for (int i = 0; i < lengths.q_len; ++i)
      for (int tile = 0; tile < n_tiles_; ++tile) {
        const int first_key = tile * tile_keys, last_key = std::min(first_key + tile_keys, lengths.kv_len) - 1;
        const int row_pos = i + lengths.kv_len - lengths.q_len, at = i * n_tiles_ + tile;
        visible_[at + n_tiles_] = visible_[at] + counts.visible(row_pos - last_key, row_pos - first_key);
        biased_[at + n_tiles_] = biased_[at] + counts.biased(row_pos - last_key, row_pos - first_key);
      }
  }
  int n_tiles() const { return n_tiles_; }
  int visible(int first_token, int end_token, int tile) const {
    return visible_[end_token * n_tiles_ + tile] - visible_[first_token * n_tiles_ + tile];
  }
  int biased(int first_token, int end_token, int tile) const {
    return biased_[end_token * n_tiles_ + tile] - biased_[first_token * n_tiles_ + tile];
  }

 private:
  int n_tiles_ = 0;
  std::vector<int> visible_, biased_;
};

// 0 ... 70 and the lengths beside one and two tiles.
inline std::vector<int> q_lens(int tile_rows) {
  std::vector<int> lens;
  for (int n = 0; n <= 70; ++n) lens.push_back(n);
  for (int n : {tile_rows - 1, tile_rows, tile_rows + 1, 2 * tile_rows - 1, 2 * tile_rows, 2 * tile_rows + 1})
    if (n > 70) lens.push_back(n);
  return lens;
}
inline constexpr int kMaxKvLen = 300;  // more than two of the largest tiles
// Every length; under a sanitizer, which is some ten times slower, every eleventh.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kKvLenStep = 11;
#else
inline constexpr int kKvLenStep = 1;
#endif

}  // namespace flashrel::reference
