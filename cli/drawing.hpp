// The map of one sequence's row tiles x key tiles: which are skipped, plain, masked, biased; as text and as SVG.
#pragma once

#include <string>
#include <vector>

#include "core/plan.hpp"
#include "core/problem.hpp"
#include "index/ranges.hpp"

namespace flashrel::cli {

struct TileMap {
  Lengths lengths;
  int tile_rows = 0, tile_keys = 0;                // of one tile
  int row_tiles_a_cell = 1, key_tiles_a_cell = 1;  // long maps are drawn coarser
  std::vector<std::vector<TileClass>> cells;       // [row cell][key cell]
  std::vector<int> parts;                          // work items that share the row cell's first tile, a KV head
};

// At most max_rows x max_columns cells. A coarse cell is classified as one rectangle.
TileMap make_tile_map(const Problem& problem, const Plan& plan, const std::vector<Lengths>& batch, int seq, int max_rows,
                      int max_columns);

std::string draw_text(const TileMap& map);
std::string draw_svg(const TileMap& map, const std::string& title);

std::string escape_xml(const std::string& text);

}  // namespace flashrel::cli
