// C++20 over the C ABI: typed tensor views, a status value, and the calls. Header only; link flashrel::flashrel.
//
//   flashrel::Attention call;
//   call.q = flashrel::tensor(q.data(), FLASHREL_FLOAT32, {n_tokens, 8, 128});
//   ... call.softmax_scale = 1.0 / 128;
//   flashrel::HostWorkspace workspace;
//   if (auto result = call.run(workspace); !result) std::cerr << result.message() << '\n';
//
// Every field is documented in flashrel.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>

#include "flashrel/flashrel.h"

namespace flashrel {

// Outcome of a call: converts to true when fine, else carries the library's sentence.
class [[nodiscard]] Result {
 public:
  explicit Result(flashrel_code code) : code_(code), message_(code == FLASHREL_OK ? "" : flashrel_last_error()) {}
  explicit operator bool() const { return code_ == FLASHREL_OK; }
  flashrel_code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  flashrel_code code_;
  std::string message_;
};

// A view with the given strides (in elements); row-major when none are given.
inline flashrel_tensor tensor(const void* data, flashrel_dtype dtype, std::initializer_list<std::int64_t> shape,
                              std::initializer_list<std::int64_t> stride = {}) {
  flashrel_tensor t{};
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  int i = 0;
  for (const std::int64_t size : shape) t.shape[i++] = size;
  std::int64_t step = 1;
  for (i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = step;
    step *= t.shape[i];
  }
  i = 0;
  for (const std::int64_t s : stride) t.stride[i++] = s;
  return t;
}

// 256-byte aligned host memory that grows on demand; may be shared by calls that do not run at the same time.
class HostWorkspace {
 public:
  void* reserve(std::size_t bytes) {
    if (bytes > capacity_) {
      data_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{256})));
      capacity_ = bytes;
    }
    return data_.get();
  }

 private:
  struct Delete {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{256}); }
  };
  std::unique_ptr<std::byte, Delete> data_;
  std::size_t capacity_ = 0;
};

// The arguments of flashrel.h with defaults filled in.
struct Attention : flashrel_attention_args {
  Attention() { flashrel_attention_args_init(this, sizeof(flashrel_attention_args)); }

  Result workspace(std::size_t& bytes) const { return Result(flashrel_attention_workspace(this, &bytes)); }
  // In caller-owned memory; `stream` is a cudaStream_t.
  Result run(void* memory_, std::size_t bytes, void* stream = nullptr) const {
    return Result(flashrel_attention(this, memory_, bytes, stream));
  }
  // Host memory: sizes the workspace and runs.
  Result run(HostWorkspace& host) const {
    std::size_t bytes = 0;
    if (Result sized = workspace(bytes); !sized) return sized;
    return run(host.reserve(bytes), bytes);
  }
};

// A schedule in host memory that calls of an equal plan share: make it once a step, then set `call.schedule = &shared`.
class HostSchedule : public flashrel_schedule_buffer {
 public:
  HostSchedule() : flashrel_schedule_buffer{} {}
  Result make(const Attention& call) {
    if (Result sized = Result(flashrel_schedule_bytes(&call, &bytes)); !sized) return sized;
    data = memory_.reserve(bytes);
    return Result(flashrel_schedule(&call, this, nullptr));
  }

 private:
  HostWorkspace memory_;
};

struct Merge : flashrel_merge_args {
  Merge() { flashrel_merge_args_init(this, sizeof(flashrel_merge_args)); }
  Result run(void* stream = nullptr) const { return Result(flashrel_merge(this, stream)); }
};

inline std::string info() {
  std::size_t needed = 0;
  flashrel_info_json(nullptr, 0, &needed);
  std::string text(needed, '\0');
  flashrel_info_json(text.data(), text.size(), nullptr);
  text.resize(needed - 1);
  return text;
}

}  // namespace flashrel
