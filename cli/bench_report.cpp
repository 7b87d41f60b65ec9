#include "cli/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/drawing.hpp"
#include "cli/text.hpp"
#include "flashrel/flashrel.h"

namespace flashrel::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ceilings_json(const Ceilings& c) {
  return {
      {"machine", c.machine}, {"read_gb_per_s", c.read_gb_per_s}, {"matrix_tflop_per_s", c.matrix_tflop_per_s}, {"how", c.how}};
}

}  // namespace

std::string report_json(const Report& report) {
  char date[32] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  Json json = {{"flashrel", flashrel_version()}, {"date", date}, {"note", report.note}};
  if (!report.host.machine.empty()) json["cpu"] = ceilings_json(report.host);
  if (!report.gpu.machine.empty()) json["gpu"] = ceilings_json(report.gpu);
  json["figures"] = Json::array();
  for (const Figure& f : report.figures) {
    const Ceilings& c = report.ceilings(f.memory);
    json["figures"].push_back({{"case", f.case_line},
                               {"target", f.target},
                               {"median_us", f.us.median},
                               {"p10_us", f.us.low},
                               {"p90_us", f.us.high},
                               {"n", f.us.n},
                               {"predicted_us", f.predicted_us},
                               {"copies", f.n_copies},
                               {"bytes", f.bytes},
                               {"flops", f.flops},
                               {"gb_per_s", f.gb_per_s()},
                               {"of_read_ceiling", f.of_read(c)},
                               {"tflop_per_s", f.tflop_per_s()},
                               {"of_matrix_ceiling", f.of_matrix(c)},
                               {"correct", f.correct}});
  }
  return json.dump(1) + "\n";
}

std::string report_svg(const Report& report) {
  constexpr int kBarTop = 70, kRow = 40, kLeft = 20, kBar = 640;
  const int height = kBarTop + kRow * static_cast<int>(report.figures.size()) + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"{0}\" viewBox=\"0 0 960 {0}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"20\" y=\"22\" font-size=\"15\">FlashRel: part of the machine's nearer measured ceiling</text>\n",
      height);
  int y = 40;
  for (const Ceilings* c : {&report.host, &report.gpu}) {
    if (c->machine.empty()) continue;
    svg += fmt::format("<text x=\"20\" y=\"{}\" fill=\"#555\">{}: read {:.0f} GB/s, matrix {:.2f} TFLOP/s</text>\n", y,
                       escape_xml(c->machine), c->read_gb_per_s, c->matrix_tflop_per_s);
    y += 15;
  }
  y = kBarTop;
  for (const Figure& f : report.figures) {
    const Ceilings& c = report.ceilings(f.memory);
    const bool by_memory = f.of_read(c) >= f.of_matrix(c);
    const double part = std::clamp(std::max(f.of_read(c), f.of_matrix(c)), 0.0, 1.0);
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\">{} [{}]</text>\n", kLeft, y + 10, escape_xml(f.case_line), escape_xml(f.target));
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"14\" fill=\"#eee\"/>\n", kLeft, y + 15, kBar);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"14\" fill=\"{}\"/>\n", kLeft, y + 15, part * kBar,
                       by_memory ? "#4292c6" : "#e6550d");
    svg += fmt::format("<text x=\"{}\" y=\"{}\">{} of {}, {}{}</text>\n", kLeft + kBar + 8, y + 27, percent_text(part),
                       by_memory ? "read" : "matrix", time_text(f.us.median), f.correct ? "" : ", WRONG");
    y += kRow;
  }
  return svg + "</svg>\n";
}

}  // namespace flashrel::cli
