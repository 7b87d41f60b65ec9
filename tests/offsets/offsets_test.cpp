// Offsets above 2^31 elements and 2^32 bytes, really addressed: tensors lie in huge sparse mappings, of which only the pages
// that a call needs are ever touched. A 32-bit offset would read or write elsewhere and give another answer.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/runners.hpp"

namespace flashrel::test {
namespace {

using check::HostProblem;

// Address space without memory behind it until it is touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() { munmap(data_, bytes_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

class Offsets : public testing::Test {
 protected:
  // Moves `view` so that index i of dimension 0 lies i * stride elements from the start, all else as before.
  void spread(flashrel_tensor& view, std::int64_t stride) {
    const std::int64_t rows = view.shape[0];
    const std::size_t size = size_of(static_cast<DType>(view.dtype));
    std::int64_t inner = 1;
    for (int dim = 1; dim < view.rank; ++dim) inner += (view.shape[dim] - 1) * view.stride[dim];
    ASSERT_GE(stride, inner);
    const auto& memory = memory_.emplace_back(std::make_unique<SparseMemory>(static_cast<std::size_t>(rows * stride) * size));
    for (std::int64_t i = 0; i < rows; ++i)
      std::memcpy(memory->data() + static_cast<std::size_t>(i * stride) * size,
                  static_cast<const std::byte*>(view.data) + static_cast<std::size_t>(i * view.stride[0]) * size,
                  static_cast<std::size_t>(inner) * size);
    view.data = memory->data();
    view.stride[0] = stride;
    EXPECT_GT((rows - 1) * stride, std::int64_t{1} << 31) << "the case must reach past 2^31 elements";
  }

  void expect_right_on_host(HostProblem& host) {
    check::Reference reference;
    ASSERT_TRUE(check::make_reference(host, 200, reference).ok());
    for (const Runner& runner : runners_for(host))
      if (runner.options.memory == MemoryKind::kHost) expect_verdict(runner, host, reference, run(runner, host));
  }

 private:
  std::vector<std::unique_ptr<SparseMemory>> memory_;
};

constexpr std::int64_t kGiga = std::int64_t{1} << 30;

TEST_F(Offsets, Caches) {
  for (const char* line : {"q=1 kv=200 hq=4 hkv=2 d=64 page=16 extent=64 bias=logits dtype=bf16",
                           "q=40 kv=200 hq=4 hkv=2 d=64 page=16 extent=64 bias=fused dtype=bf16 splits=3",
                           "q=5 kv=200 hq=4 hkv=2 d=64 page=16 bias=none dtype=fp32"}) {
    HostProblem host = make(line);
    spread(host.args.k_cache, kGiga / 4 + 64);
    spread(host.args.v_cache, kGiga / 3 + 64);
    expect_right_on_host(host);
  }
}

TEST_F(Offsets, RelLogits) {
  for (const char* dtype : {"bf16", "fp32"}) {
    HostProblem host =
        make(std::string("q=20,1 kv=70,90 hq=4 hkv=2 d=64 page=16 extent=64 bias=logits dtype=bf16 rel_dtype=") + dtype);
    spread(host.args.rel_logits, kGiga / 8 + 2);
    expect_right_on_host(host);
  }
}

TEST_F(Offsets, QueriesAndFusedInputs) {
  HostProblem host = make("q=20,1 kv=70,90 hq=4 hkv=2 d=64 page=16 extent=64 bias=fused rel_scale=1 dtype=bf16");
  spread(host.args.q, kGiga / 8 + 64);
  spread(host.args.rel, kGiga / 8 + 16);
  spread(host.args.rel_proj, kGiga / 4 + 64);
  spread(host.args.rel_scale, kGiga / 8 + 1);
  expect_right_on_host(host);
}

TEST_F(Offsets, Outputs) {
  for (const char* splits : {"", " splits=3"}) {
    HostProblem host = make(std::string("q=20,1 kv=70,290 hq=4 hkv=2 d=64 page=16 bias=none dtype=bf16") + splits);
    spread(host.args.out, kGiga / 8 + 64);
    spread(host.args.lse, kGiga / 8 + 4);
    expect_right_on_host(host);
  }
}

}  // namespace
}  // namespace flashrel::test
