#include "check/memory.hpp"

#include <cstring>
#include <new>

#if defined(FLASHREL_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace flashrel::check {
namespace {

constexpr std::align_val_t kAlignment{256};

#if defined(FLASHREL_WITH_CUDA)
Status cuda_status(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
#else
Status no_cuda() { return runtime_error("memory: this build has no GPU backends"); }
#endif

}  // namespace

Status Block::allocate(MemoryKind kind, std::size_t bytes, Block& block) {
  Block fresh;
  fresh.kind_ = kind;
  fresh.bytes_ = bytes;
  if (kind == MemoryKind::kHost) {
    fresh.data_ = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
    if (fresh.data_ == nullptr) return runtime_error("out of host memory: " + std::to_string(bytes) + " bytes asked for");
  } else {
#if defined(FLASHREL_WITH_CUDA)
    FLASHREL_RETURN_IF_ERROR(cuda_status("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&fresh.data_), bytes ? bytes : 1)));
#else
    return no_cuda();
#endif
  }
  block = std::move(fresh);
  return {};
}

void Block::release() {
  if (data_ == nullptr) return;
  if (kind_ == MemoryKind::kHost) ::operator delete(data_, kAlignment);
#if defined(FLASHREL_WITH_CUDA)
  if (kind_ == MemoryKind::kCuda) cudaFree(data_);
#endif
  data_ = nullptr;
}

#if defined(FLASHREL_WITH_CUDA)

Status copy_in(MemoryKind kind, void* to, const void* from_host, std::size_t bytes) {
  if (bytes == 0) return {};
  if (kind == MemoryKind::kHost) return std::memcpy(to, from_host, bytes), Status{};
  return cuda_status("cudaMemcpy", cudaMemcpy(to, from_host, bytes, cudaMemcpyHostToDevice));
}

Status copy_out(MemoryKind kind, void* to_host, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  if (kind == MemoryKind::kHost) return std::memcpy(to_host, from, bytes), Status{};
  return cuda_status("cudaMemcpy", cudaMemcpy(to_host, from, bytes, cudaMemcpyDeviceToHost));
}

Status fill_bytes(MemoryKind kind, void* to, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return {};
  if (kind == MemoryKind::kHost) return std::memset(to, value, bytes), Status{};
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaMemset", cudaMemset(to, value, bytes)));
  return synchronize(kind);
}

Status synchronize(MemoryKind kind) {
  if (kind == MemoryKind::kHost) return {};
  return cuda_status("cudaDeviceSynchronize", cudaDeviceSynchronize());
}

#else

Status copy_in(MemoryKind kind, void* to, const void* from_host, std::size_t bytes) {
  if (kind == MemoryKind::kCuda) return no_cuda();
  if (bytes > 0) std::memcpy(to, from_host, bytes);
  return {};
}

Status copy_out(MemoryKind kind, void* to_host, const void* from, std::size_t bytes) {
  if (kind == MemoryKind::kCuda) return no_cuda();
  if (bytes > 0) std::memcpy(to_host, from, bytes);
  return {};
}

Status fill_bytes(MemoryKind kind, void* to, unsigned char value, std::size_t bytes) {
  if (kind == MemoryKind::kCuda) return no_cuda();
  if (bytes > 0) std::memset(to, value, bytes);
  return {};
}

Status synchronize(MemoryKind kind) { return kind == MemoryKind::kCuda ? no_cuda() : Status{}; }

#endif

}  // namespace flashrel::check
