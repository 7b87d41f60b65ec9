// What the commands print with: tables, human units, a progress bar, the peak of memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace flashrel::cli {

inline constexpr int kFine = 0, kWrong = 1, kBadInput = 2;  // exit codes

// Prints the sentence to stderr; bad input unless the machine is to blame.
int fail(const Status& status);

// Columns as wide as their widest cell, two spaces apart; no trailing blanks.
class Table {
 public:
  explicit Table(std::vector<std::string> head, int indent = 0) : indent_(indent), rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  int indent_;
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(double bytes);    // "1.50 MiB"
std::string time_text(double us);        // "64.9 us"
std::string count_text(double count);    // "1.10 T", for operations
std::string percent_text(double ratio);  // "87 %"; "-" when it is not known (0)

// One line on stderr that rewrites itself; silent when stderr is no terminal.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress();
  void step(const std::string& what);
  void clear();  // before anything else is printed

 private:
  bool shown_;
  std::size_t total_, done_ = 0;
};

// Largest resident size of this process so far (VmHWM), in bytes; 0 when the system does not say.
std::size_t peak_memory_bytes();

Status write_text_file(const std::string& path, const std::string& text);

}  // namespace flashrel::cli
