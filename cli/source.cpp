#include "cli/source.hpp"

#include <filesystem>

#include "check/generate.hpp"
#include "check/problem_file.hpp"

namespace flashrel::cli {

Status read_cases(const std::string& file_or_name, std::vector<check::CaseLine>& cases) {
  if (!std::filesystem::exists(file_or_name))
    for (const EmbeddedCases& embedded : embedded_cases())
      if (embedded.name == file_or_name) return check::parse_cases(embedded.name, embedded.text, cases);
  return check::read_case_file(file_or_name, cases);
}

bool is_problem_file(const std::vector<std::string>& words) {
  return words.size() == 1 && (words[0].ends_with(".safetensors") || words[0].find('=') == std::string::npos);
}

std::string join(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

Status load_problem(const std::vector<std::string>& words, std::uint64_t seed, check::HostProblem& host) {
  if (is_problem_file(words)) return check::read_problem(words[0], host);
  check::Case c;
  FLASHREL_RETURN_IF_ERROR(check::parse_case(join(words), c));
  host = check::generate(c, seed);
  return {};
}

Status load_outline(const std::vector<std::string>& words, check::HostProblem& host) {
  if (is_problem_file(words)) return check::read_problem(words[0], host);
  check::Case c;
  FLASHREL_RETURN_IF_ERROR(check::parse_case(join(words), c));
  host = check::outline(c);
  return {};
}

}  // namespace flashrel::cli
