// Host and CUDA memory behind one face, so that a problem can be placed in either. The only file of src/check that knows the
// CUDA runtime; in a build without it every CUDA call answers with a Status.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "base/types.hpp"

namespace flashrel::check {

// Owned, 256-byte aligned.
class Block {
 public:
  Block() = default;
  ~Block() { release(); }
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  static Status allocate(MemoryKind kind, std::size_t bytes, Block& block);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }

 private:
  void release();

  MemoryKind kind_ = MemoryKind::kHost;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Between host memory and memory of `kind`; all of these wait until they are done.
Status copy_in(MemoryKind kind, void* to, const void* from_host, std::size_t bytes);
Status copy_out(MemoryKind kind, void* to_host, const void* from, std::size_t bytes);
Status fill_bytes(MemoryKind kind, void* to, unsigned char value, std::size_t bytes);
// Waits for all work and reports its errors; nothing for host memory.
Status synchronize(MemoryKind kind);

}  // namespace flashrel::check
