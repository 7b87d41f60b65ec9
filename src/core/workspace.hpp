// Workspace: a keyed ledger of one caller-owned buffer. The plan books entries; backends look them up by name.
#pragma once

#include <cassert>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/int_math.hpp"

namespace flashrel {

class Workspace {
 public:
  static constexpr std::size_t kAlignment = 256;

  struct Entry {
    std::string name;
    std::size_t offset = 0, bytes = 0;
  };

  // Books `bytes` under a new name; zero bytes book nothing.
  void book(std::string name, std::size_t bytes) {
    if (bytes == 0) return;
    entries_.push_back({std::move(name), total_, bytes});
    total_ = round_up(total_ + bytes, kAlignment);
  }

  // The entry's address inside `base`, nullptr when it was not booked.
  template <class T>
  T* at(void* base, std::string_view name) const {
    for (const Entry& entry : entries_)
      if (entry.name == name) return reinterpret_cast<T*>(static_cast<std::byte*>(base) + entry.offset);
    return nullptr;
  }

  std::size_t total_bytes() const { return total_; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::size_t total_ = 0;
};

}  // namespace flashrel
