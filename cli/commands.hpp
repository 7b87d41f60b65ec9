// The commands of `flashrel`, one file each. Every one returns an exit code: 0 fine, 1 wrong result, 2 bad input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/targets.hpp"

namespace flashrel::cli {

int info(bool json);

struct PlanOptions {
  std::vector<std::string> words;  // a problem file or a case line
  std::string device = "here", backend = "auto", route = "auto", svg;
  std::int64_t num_splits = -1;
  int seq = -1;                        // drawn; -1 = the one with the most work
  bool json = false, measure = false;  // measure: the CPU's ceilings, for its bound
};
int plan(const PlanOptions& options);
std::vector<std::string> device_names();

struct MakeOptions {
  std::vector<std::string> words;
  std::string output;
  std::uint64_t seed = 1;
  bool expected = false;  // add out and lse of the float64 definition
};
int make(const MakeOptions& options);

struct RunCommand {
  std::string problem, output;
  std::string backend = "auto", route = "auto", memory = "auto";  // memory: auto = where the named backend lives, else host
  std::int64_t num_splits = -1;
  bool show_memory = false;
};
int run(const RunCommand& options);

struct CheckOptions {
  std::vector<std::string> problems;
  std::vector<std::string> case_words;
  std::uint64_t seed = 1;
  Choice choice;
};
int check_command(const CheckOptions& options);

struct VerifyOptions {
  std::vector<std::string> files;  // case files on disk or compiled in
  std::uint64_t seed = 1;
  std::int64_t max_rows = 0;
  Choice choice;
};
int verify(const VerifyOptions& options);

struct BenchOptions {
  std::vector<std::string> files, case_words;
  std::string json, svg, note;
  double seconds = 1;  // measured, a case and target
  bool show_memory = false;
  Choice choice;
};
int bench(const BenchOptions& options);

}  // namespace flashrel::cli
