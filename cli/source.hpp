// What a command works on: a problem file, or a case line given as words; and case files, on disk or compiled in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "check/case_line.hpp"
#include "check/host_problem.hpp"

namespace flashrel::cli {

struct EmbeddedCases {
  std::string name;  // of cases/<name>.txt
  std::string text;
};
const std::vector<EmbeddedCases>& embedded_cases();

// `file_or_name`: a path, or the name of an embedded file ("conformance").
Status read_cases(const std::string& file_or_name, std::vector<check::CaseLine>& cases);

// One word that ends in .safetensors is a file; anything else is a case line.
bool is_problem_file(const std::vector<std::string>& words);
std::string join(const std::vector<std::string>& words);

// The problem with its memory.
Status load_problem(const std::vector<std::string>& words, std::uint64_t seed, check::HostProblem& host);
// Shapes and lengths alone when a case line is given: cases of any size can be planned.
Status load_outline(const std::vector<std::string>& words, check::HostProblem& host);

}  // namespace flashrel::cli
