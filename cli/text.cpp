#include "cli/text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace flashrel::cli {
namespace {

// Cells as a terminal shows them: UTF-8 continuation bytes take no column.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

int fail(const Status& status) {
  std::fputs(("flashrel: " + status.text + "\n").c_str(), stderr);
  return status.code == Code::kRuntime ? kWrong : kBadInput;
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    if (row.empty()) continue;
    std::string line(static_cast<std::size_t>(indent_), ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] - width_of(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string time_text(double us) {
  if (us < 1e4) return fmt::format("{:.1f} us", us);
  return us < 1e7 ? fmt::format("{:.1f} ms", us * 1e-3) : fmt::format("{:.1f} s", us * 1e-6);
}

std::string count_text(double count) {
  const char* units[] = {"", "K", "M", "G", "T", "P"};
  std::size_t unit = 0;
  while (count >= 1000 && unit + 1 < std::size(units)) count /= 1000, ++unit;
  return fmt::format("{:.2f} {}", count, units[unit]);
}

std::string percent_text(double ratio) { return ratio > 0 ? fmt::format("{:.0f} %", 100 * ratio) : "-"; }

Progress::Progress(std::size_t total) : shown_(isatty(STDERR_FILENO) != 0), total_(total) {}
Progress::~Progress() { clear(); }

void Progress::step(const std::string& what) {
  ++done_;
  if (!shown_) return;
  constexpr std::size_t kWidth = 24, kText = 80;
  const std::size_t filled = total_ ? kWidth * std::min(done_, total_) / total_ : 0;
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fputs(fmt::format("\r\033[K[{}] {}/{} {}", bar, done_, total_, what.substr(0, kText)).c_str(), stderr);
}

void Progress::clear() {
  if (shown_ && done_ > 0) std::fputs("\r\033[K", stderr);
}

std::size_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

Status write_text_file(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  std::error_code error;
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  if (out) std::filesystem::rename(part, path, error);
  if (!out || error) {
    std::filesystem::remove(part, error);
    return runtime_error(path + ": cannot be written");
  }
  return {};
}

}  // namespace flashrel::cli
