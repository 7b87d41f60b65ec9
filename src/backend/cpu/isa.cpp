// Which instruction sets this machine can run, and which one is in use.
#include "backend/cpu/isa.hpp"

#include <atomic>
#include <cstdlib>

#include "backend/cpu/cpu.hpp"

#if defined(FLASHREL_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flashrel::cpu {
namespace {

struct Candidate {
  const IsaKernels* kernels;
  std::string (*reason)();  // "" = this machine can run it
};

std::string runs_everywhere() { return ""; }

#if defined(FLASHREL_X86)
// Feature bits of CPUID and the register files that the operating system saves (XCR0).
// Source: Intel SDM volume 1, sections 13.2 and 14.3; volume 2, CPUID.
struct Features {
  unsigned leaf1_c = 0, leaf7_b = 0, leaf7_d = 0, leaf7_1_a = 0;
  std::uint64_t xcr0 = 0;
};

Features read_features() {
  Features f;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) f.leaf1_c = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    f.leaf7_b = b;
    f.leaf7_d = d;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) f.leaf7_1_a = a;
  if (f.leaf1_c & bit_OSXSAVE) {
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    f.xcr0 = (std::uint64_t{high} << 32) | low;
  }
  return f;
}

const Features& features() {
  static const Features f = read_features();
  return f;
}

bool os_saves(std::uint64_t mask) { return (features().xcr0 & mask) == mask; }

std::string avx2_reason() {
  constexpr unsigned kNeeded = bit_FMA | bit_F16C | bit_AVX;
  if ((features().leaf1_c & kNeeded) != kNeeded || !(features().leaf7_b & bit_AVX2)) return "the CPU lacks AVX2, FMA or F16C";
  return os_saves(0x6) ? "" : "the operating system does not save AVX registers";
}

std::string avx512_reason() {
  if (std::string reason = avx2_reason(); !reason.empty()) return reason;
  constexpr unsigned kNeeded = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  if ((features().leaf7_b & kNeeded) != kNeeded) return "the CPU lacks AVX-512 F, DQ, BW or VL";
  return os_saves(0xe6) ? "" : "the operating system does not save AVX-512 registers";
}

std::string avx512_bf16_reason() {
  if (std::string reason = avx512_reason(); !reason.empty()) return reason;
  return features().leaf7_1_a & (1u << 5) ? "" : "the CPU lacks AVX512-BF16";
}

// Linux lends the tile registers to a process that asks (Documentation/arch/x86/xstate.rst).
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

std::string amx_bf16_reason() {
  if (std::string reason = avx512_bf16_reason(); !reason.empty()) return reason;
  constexpr unsigned kNeeded = (1u << 22) | (1u << 24);  // AMX-BF16, AMX-TILE
  if ((features().leaf7_d & kNeeded) != kNeeded) return "the CPU lacks AMX-BF16";
  return os_saves(0x60000) && ask_for_tiles() ? "" : "the operating system does not grant AMX tiles";
}
#endif

// Slowest first; the last that runs is the default.
const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> all = {
      {&kScalarKernels, &runs_everywhere},
#if defined(FLASHREL_X86)
      {&kAvx2Kernels, &avx2_reason},        {&kAvx512Kernels, &avx512_reason}, {&kAvx512Bf16Kernels, &avx512_bf16_reason},
      {&kAmxBf16Kernels, &amx_bf16_reason},
#elif defined(FLASHREL_NEON)
      {&kNeonKernels, &runs_everywhere},
#endif
  };
  return all;
}

const IsaKernels* best_kernels() {
  const IsaKernels* best = nullptr;
  for (const Candidate& candidate : candidates())
    if (candidate.reason().empty()) best = candidate.kernels;
  return best;
}

// The kernels of that name, or a sentence why not.
const IsaKernels* find_kernels(const std::string& name, const char* argument, std::string& error) {
  std::string usable;
  for (const Candidate& candidate : candidates()) {
    const std::string reason = candidate.reason();
    if (name == candidate.kernels->name) {
      if (reason.empty()) return candidate.kernels;
      error = std::string(argument) + ": got " + name + ", but " + reason;
      return nullptr;
    }
    if (reason.empty()) usable += (usable.empty() ? "" : ", ") + std::string(candidate.kernels->name);
  }
  error = std::string(argument) + ": got '" + name + "', expected one of " + usable;
  return nullptr;
}

struct Choice {
  const IsaKernels* kernels = nullptr;
  std::string error;
};

const Choice& environment_choice() {
  static const Choice choice = [] {
    Choice c;
    const char* name = std::getenv("FLASHREL_CPU_ISA");
    if (name != nullptr && *name != '\0') c.kernels = find_kernels(name, "FLASHREL_CPU_ISA", c.error);
    if (c.kernels == nullptr) c.kernels = best_kernels();
    return c;
  }();
  return choice;
}

std::atomic<const IsaKernels*> forced{nullptr};

const IsaKernels& chosen() {
  const IsaKernels* kernels = forced.load(std::memory_order_acquire);
  return kernels != nullptr ? *kernels : *environment_choice().kernels;
}

}  // namespace

const IsaKernels& kernels_in_use(DType dtype, [[maybe_unused]] int head_dim) {
  const IsaKernels& kernels = chosen();
#if defined(FLASHREL_X86)
  if (kernels.bf16_operands && (dtype != DType::kBFloat16 || head_dim < kKeyStep)) return kAvx512Kernels;
#else
  (void)dtype;
#endif
  return kernels;
}

std::string isa_in_use() { return chosen().name; }

std::vector<IsaState> isa_states() {
  std::vector<IsaState> states;
  for (const Candidate& candidate : candidates()) states.push_back({candidate.kernels->name, candidate.reason()});
  return states;
}

std::string isa_error() { return forced.load() != nullptr ? "" : environment_choice().error; }

Status force_isa(const std::string& name) {
  if (name.empty()) {
    forced.store(nullptr, std::memory_order_release);
    return {};
  }
  std::string error;
  const IsaKernels* kernels = find_kernels(name, "isa", error);
  if (kernels == nullptr) return unsupported(error);
  forced.store(kernels, std::memory_order_release);
  return {};
}

}  // namespace flashrel::cpu
