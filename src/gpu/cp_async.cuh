// Asynchronous copies from global to shared memory (sm_80): cp.async and its groups.
#pragma once

#include <cstdint>

namespace flashrel::gpu {

// Copies 16 bytes, or writes 16 zero bytes without touching `source` when !valid. Both addresses are 16-byte aligned.
__device__ __forceinline__ void cp_async_16(std::uint32_t smem, const void* source, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(source), "r"(source_bytes) : "memory");
}

// The same, or nothing at all when !wanted.
__device__ __forceinline__ void cp_async_16_if(bool wanted, std::uint32_t smem, const void* source, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n}" ::"r"(smem),
      "l"(source), "r"(source_bytes), "r"(static_cast<int>(wanted))
      : "memory");
}

// Copies the first `source_bytes` (0 ... 4) of a word and fills the rest with zeros. Both addresses are 4-byte aligned.
__device__ __forceinline__ void cp_async_4(std::uint32_t smem, const void* source, int source_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(source), "r"(source_bytes) : "memory");
}

// Closes the group of this thread's copies since the last commit; an empty group is legal.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace flashrel::gpu
