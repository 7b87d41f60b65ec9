// Barriers of one thread block (sm_90): mbarriers in shared memory, named hardware barriers, the async proxy's fences.
// Source: PTX ISA, "Parallel synchronization and communication instructions".
#pragma once

#include <cstdint>

namespace flashrel::gpu {

// An mbarrier lives in shared memory as 8 bytes; `bar` is its shared-memory address. Phase p completes when `count` arrivals
// and all announced bytes have come in; mbarrier_wait(bar, p & 1) returns once phase p is complete.
__device__ __forceinline__ void mbarrier_init(std::uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives once and announces bytes that asynchronous copies will bring.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Announces bytes without arriving.
__device__ __forceinline__ void mbarrier_expect(std::uint32_t bar, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(std::uint32_t bar, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra passed;\n"
      "bra again;\n"
      "passed: }" ::"r"(bar),
      "r"(parity)
      : "memory");
}
// Makes initialised mbarriers visible to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders this thread's ordinary shared-memory writes before later reads by TMA and wgmma.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Named barrier `id` of `n_threads`: sync waits for all, arrive does not.
__device__ __forceinline__ void named_barrier_sync(int id, int n_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int n_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

// Waits for all and tells whether any thread came with `x`.
__device__ __forceinline__ bool named_barrier_any(int id, int n_threads, bool x) {
  int any;
  asm volatile(
      "{ .reg .pred mine, all;\n"
      "setp.ne.b32 mine, %3, 0;\n"
      "bar.red.or.pred all, %1, %2, mine;\n"
      "selp.b32 %0, 1, 0, all; }"
      : "=r"(any)
      : "r"(id), "r"(n_threads), "r"(static_cast<int>(x))
      : "memory");
  return any != 0;
}

// Moves registers between warpgroups; executed by all warps of a warpgroup.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace flashrel::gpu
