// Errors are values: a code and one sentence that names the argument, what was found and what was expected.
#pragma once

#include <string>
#include <utility>

namespace flashrel {

enum class Code { kOk = 0, kInvalidArgument = 1, kUnsupported = 2, kWorkspace = 3, kRuntime = 4 };  // = flashrel_code

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string text;

  bool ok() const { return code == Code::kOk; }
};

inline Status invalid(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }
inline Status unsupported(std::string text) { return {Code::kUnsupported, std::move(text)}; }
inline Status workspace_error(std::string text) { return {Code::kWorkspace, std::move(text)}; }
inline Status runtime_error(std::string text) { return {Code::kRuntime, std::move(text)}; }

}  // namespace flashrel

// Returns the Status of `expression` from the enclosing function unless it is ok.
#define FLASHREL_RETURN_IF_ERROR(expression)                        \
  do {                                                              \
    if (auto status_ = (expression); !status_.ok()) return status_; \
  } while (0)
