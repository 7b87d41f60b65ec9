// The two ordered lists of backends: `auto` takes the first that serves.
#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"
#if FLASHREL_WITH_CUDA
#include "backend/mma/mma.hpp"
#endif
#if FLASHREL_WITH_SM90
#include "backend/sm90/sm90.hpp"
#endif

namespace flashrel {

std::span<const Backend* const> backends_for(MemoryKind memory) {
  static const Backend* const kHost[] = {&cpu::kBackend};
#if FLASHREL_WITH_CUDA
  static const Backend* const kCuda[] = {
#if FLASHREL_WITH_SM90
      &sm90::kBackend,
#endif
      &mma::kBackend};
  if (memory == MemoryKind::kCuda) return kCuda;
#endif
  if (memory == MemoryKind::kHost) return kHost;
  return {};
}

}  // namespace flashrel
