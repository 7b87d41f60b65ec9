// A benchmark's figures as JSON and as a plot.
#pragma once

#include <string>
#include <vector>

#include "cli/ceilings.hpp"
#include "cli/timing.hpp"

namespace flashrel::cli {

struct Figure {
  std::string case_line, target;
  MemoryKind memory = MemoryKind::kHost;
  Spread us;
  double flops = 0, bytes = 0;  // visible pairs and bytes that a call must move, counted from the lengths
  double predicted_us = 0;      // by the plan's cost model; 0 = unknown
  std::size_t n_copies = 1;
  bool is_bf16 = true;  // the matrix ceiling is that of bfloat16
  bool correct = false;

  double gb_per_s() const { return us.median > 0 ? bytes / us.median * 1e-3 : 0; }
  double tflop_per_s() const { return us.median > 0 ? flops / us.median * 1e-6 : 0; }
  double of_read(const Ceilings& c) const { return c.read_gb_per_s > 0 ? gb_per_s() / c.read_gb_per_s : 0; }
  double of_matrix(const Ceilings& c) const {
    return is_bf16 && c.matrix_tflop_per_s > 0 ? tflop_per_s() / c.matrix_tflop_per_s : 0;
  }
};

struct Report {
  std::string note;
  Ceilings host, gpu;  // of the memories that were used
  std::vector<Figure> figures;

  const Ceilings& ceilings(MemoryKind memory) const { return memory == MemoryKind::kHost ? host : gpu; }
};

std::string report_json(const Report& report);
// A bar a figure: the part of its nearer ceiling that it reaches.
std::string report_svg(const Report& report);

}  // namespace flashrel::cli
