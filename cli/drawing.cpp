#include "cli/drawing.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "index/schedule.hpp"

namespace flashrel::cli {
namespace {

struct Kind {
  char glyph;
  const char *colour, *meaning;
};
constexpr Kind kSkipped{'.', "#f2f2f2", "skipped: costs nothing"}, kPlain{'o', "#9ecae1", "plain"},
    kMasked{'m', "#4292c6", "masked"}, kBiased{'b', "#fdae6b", "biased"}, kBoth{'B', "#e6550d", "biased and masked"};

const Kind& kind_of(TileClass c) {
  if (c.skipped) return kSkipped;
  if (c.biased) return c.masked ? kBoth : kBiased;
  return c.masked ? kMasked : kPlain;
}

int n_cells(int n, int a_cell) { return ceil_div(std::max(n, 0), a_cell); }

}  // namespace

TileMap make_tile_map(const Problem& problem, const Plan& plan, const std::vector<Lengths>& batch, int seq, int max_rows,
                      int max_columns) {
  const ScheduleShape& s = plan.schedule;
  TileMap map;
  map.lengths = batch[static_cast<std::size_t>(seq)];
  map.tile_rows = s.tile_rows;
  map.tile_keys = s.tile_keys;
  const int n_row_tiles = row_tiles(map.lengths.q_len, s.group, s.tile_rows);
  const int n_key_tiles = ceil_div(map.lengths.kv_len, s.tile_keys);
  map.row_tiles_a_cell = std::max(1, ceil_div(n_row_tiles, max_rows));
  map.key_tiles_a_cell = std::max(1, ceil_div(n_key_tiles, max_columns));

  const auto lengths_of = [&](int i) { return batch[static_cast<std::size_t>(i)]; };
  const int auto_tiles = s.target_parts > 0 ? auto_tiles_per_part(s, batch_tiles(s, lengths_of)) : 0;
  for (int r = 0; r < n_cells(n_row_tiles, map.row_tiles_a_cell); ++r) {
    const int first = r * map.row_tiles_a_cell, last = std::min(first + map.row_tiles_a_cell, n_row_tiles) - 1;
    const Range rows{unit_rows(s, map.lengths, first).begin, unit_rows(s, map.lengths, last).end};
    const Range tokens = row_tokens(rows, s.group);
    auto& cells = map.cells.emplace_back();
    for (int c = 0; c < n_cells(n_key_tiles, map.key_tiles_a_cell); ++c) {
      const int begin = c * map.key_tiles_a_cell * s.tile_keys;
      const int end = std::min(begin + map.key_tiles_a_cell * s.tile_keys, n_key_tiles * s.tile_keys);
      cells.push_back(classify(tokens, {begin, end}, map.lengths, problem.visible, problem.band));
    }
    const int n_tiles = unit_tiles(s, map.lengths, first).size();
    map.parts.push_back(unit_parts(n_tiles, unit_tiles_per_part(s, map.lengths, n_tiles, auto_tiles)));
  }
  return map;
}

std::string draw_text(const TileMap& map) {
  std::string text = fmt::format("keys 0 ... {} to the right; a cell is {} x {} tiles of {} rows x {} keys\n",
                                 map.lengths.kv_len, map.row_tiles_a_cell, map.key_tiles_a_cell, map.tile_rows, map.tile_keys);
  for (std::size_t r = 0; r < map.cells.size(); ++r) {
    std::string line = fmt::format("{:>6} |", r * static_cast<std::size_t>(map.row_tiles_a_cell));
    for (const TileClass& cell : map.cells[r]) line += kind_of(cell).glyph;
    text += line + (map.parts[r] > 1 ? fmt::format("|  in {} parts\n", map.parts[r]) : "|\n");
  }
  text += " row tile\n       ";
  for (const Kind& kind : {kSkipped, kPlain, kMasked, kBiased, kBoth})
    text += fmt::format(" {} {}  ", kind.glyph, kind.meaning);
  text += "\n";
  return text;
}

std::string escape_xml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '"')
      escaped += "&quot;";
    else
      escaped += c;
  }
  return escaped;
}

std::string draw_svg(const TileMap& map, const std::string& title) {
  constexpr int kLeft = 100, kTop = 64, kLegend = 48, kWidest = 960;
  const int columns = map.cells.empty() ? 1 : std::max<int>(1, static_cast<int>(map.cells[0].size()));
  const int rows = std::max<int>(1, static_cast<int>(map.cells.size()));
  const int cell = std::clamp(kWidest / std::max(rows, columns), 4, 24);
  const int width = std::max(640, kLeft + columns * cell + 90), height = kTop + rows * cell + kLegend;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"10\" y=\"20\" font-size=\"13\">{2}</text>\n"
      "<text x=\"{3}\" y=\"{4}\">keys 0 ... {5}, tiles of {6}</text>\n"
      "<text x=\"14\" y=\"{7}\">rows,</text><text x=\"14\" y=\"{8}\">tiles of {9}</text>\n",
      width, height, escape_xml(title), kLeft, kTop - 10, map.lengths.kv_len, map.tile_keys, kTop + 12, kTop + 26,
      map.tile_rows);
  for (int r = 0; r < static_cast<int>(map.cells.size()); ++r) {
    const auto& row = map.cells[static_cast<std::size_t>(r)];
    // Neighbours of one kind become one rectangle.
    for (std::size_t begin = 0, end; begin < row.size(); begin = end) {
      for (end = begin + 1; end < row.size() && row[end] == row[begin];) ++end;
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"/>\n",
          kLeft + static_cast<int>(begin) * cell, kTop + r * cell, static_cast<int>(end - begin) * cell, cell,
          kind_of(row[begin]).colour);
    }
    if (const int parts = map.parts[static_cast<std::size_t>(r)]; parts > 1)
      svg += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"10\">{} parts</text>\n", kLeft + columns * cell + 6,
                         kTop + r * cell + std::min(cell, 12), parts);
  }
  int x = kLeft;
  const int y = kTop + rows * cell + 22;
  for (const Kind& kind : {kSkipped, kPlain, kMasked, kBiased, kBoth}) {
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"#999\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
        x, y, kind.colour, x + 17, y + 10, kind.meaning);
    x += 40 + 7 * static_cast<int>(std::string(kind.meaning).size());
  }
  return svg + "</svg>\n";
}

}  // namespace flashrel::cli
