// A writer for the two JSON texts of the ABI; values are appended in order, commas are placed by themselves.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace flashrel {

class Json {
 public:
  Json& begin_object(std::string_view key = {}) { return open(key, '{'); }
  Json& begin_array(std::string_view key = {}) { return open(key, '['); }
  Json& end_object() { return close('}'); }
  Json& end_array() { return close(']'); }

  Json& text(std::string_view key, std::string_view value) {
    prefix(key);
    quote(value);
    return *this;
  }
  Json& integer(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Json& boolean(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  Json& number(std::string_view key, double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.9g", value);
    return raw(key, std::isfinite(value) ? buffer : "null");
  }

  const std::string& str() const { return out_; }

 private:
  void prefix(std::string_view key) {
    if (need_comma_) out_ += ',';
    need_comma_ = true;
    if (key.empty()) return;
    quote(key);
    out_ += ':';
  }
  void quote(std::string_view value) {
    out_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') out_ += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) out_ += c;
    }
    out_ += '"';
  }
  Json& raw(std::string_view key, std::string_view value) {
    prefix(key);
    out_ += value;
    return *this;
  }
  Json& open(std::string_view key, char bracket) {
    prefix(key);
    out_ += bracket;
    need_comma_ = false;
    return *this;
  }
  Json& close(char bracket) {
    out_ += bracket;
    need_comma_ = true;
    return *this;
  }

  std::string out_;
  bool need_comma_ = false;
};

}  // namespace flashrel
