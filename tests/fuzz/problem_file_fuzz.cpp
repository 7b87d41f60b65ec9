// libFuzzer target: whatever the bytes, the reader of problem files answers with a problem that is safe to compute, or with
// one sentence. Built and run by tools/fuzz.sh with ASan and UBSan.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "check/judge.hpp"
#include "check/problem_file.hpp"

namespace flashrel::check {
namespace {

void try_bytes(std::span<const std::byte> bytes) {
  HostProblem host;
  const Status status = parse_problem(bytes, host);
  if (!status.ok()) {
    if (status.text.empty() || status.text.find('\n') != std::string::npos) std::abort();  // one sentence
    return;
  }
  Reference reference;
  if (!make_reference(host, 2, reference).ok()) std::abort();  // what was read can be computed
}

// A length that fits the header, so that mutations reach what lies behind it: the input is header text up to the first
// newline, then data.
void try_as_header(std::span<const std::byte> bytes) {
  const auto newline = std::find(bytes.begin(), bytes.end(), std::byte{'\n'});
  const auto n = static_cast<std::uint64_t>(newline - bytes.begin());
  std::vector<std::byte> file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>((n >> (8 * i)) & 0xff));
  file.insert(file.end(), bytes.begin(), newline);
  if (newline != bytes.end()) file.insert(file.end(), newline + 1, bytes.end());
  try_bytes(file);
}

}  // namespace
}  // namespace flashrel::check

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  flashrel::check::try_bytes(bytes);
  flashrel::check::try_as_header(bytes);
  return 0;
}
