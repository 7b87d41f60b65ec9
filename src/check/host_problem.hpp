// HostProblem: one call's arguments with the host memory behind them; made by generate() or read from a problem file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "api/validate.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "flashrel/flashrel.h"

namespace flashrel::check {

// Exactly `bytes` bytes, 64-byte aligned, not initialised; a memory checker sees a read past the end.
class Buffer {
 public:
  static constexpr std::align_val_t kAlignment{64};

  explicit Buffer(std::size_t bytes) : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {}

  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

// Outputs stand between guard bytes; before a run the whole buffer holds this byte, which is a NaN in every dtype.
inline constexpr std::size_t kGuardBytes = 256;
inline constexpr unsigned char kUntouched = 0xff;

struct HostProblem {
  std::string label;  // the case line or the file's name
  std::uint64_t seed = 0;
  flashrel_attention_args args;  // memory is host; data pointers lead into the buffers
  std::vector<Buffer> inputs, outputs;
  std::vector<float> expected_out, expected_lse;  // contiguous; from a problem file, empty = judge by the definition
  std::string kv_layout;                          // "NHD" or "HND" when K and V are halves of one tensor

  HostProblem() { flashrel_attention_args_init(&args, sizeof args); }

  std::byte* add_input(std::size_t bytes) { return inputs.emplace_back(bytes).data(); }
  // Allocates out, and lse when wanted, with guards; `out_token_elems` is the token stride of out.
  void add_outputs(std::int64_t out_token_elems, bool has_lse, bool lse_is_head_major);
};

// View with row-major strides.
flashrel_tensor make_tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape);
std::int64_t count_of(const flashrel_tensor& tensor);  // elements

// Every tensor of the call under its name in the contract, inputs first, then out and lse.
struct NamedTensor {
  const char* name;
  flashrel_tensor flashrel_attention_args::* field;
};
const std::vector<NamedTensor>& input_tensors();
const std::vector<NamedTensor>& output_tensors();

// Shapes, bounds, lengths and page numbers are checked; then Problem and Tensors describe the call.
Status describe(const HostProblem& host, Call& call);

}  // namespace flashrel::check
