// The CPU backend: always present, serves the whole contract on host memory.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.hpp"

namespace flashrel::cpu {

extern const Backend kBackend;

// Instruction set in use ("scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16", "neon"): the best one present, or the one
// named by the environment variable FLASHREL_CPU_ISA.
std::string isa_in_use();
// All instruction sets this build has, each with "" or the reason why this machine cannot run it.
struct IsaState {
  std::string name, reason;
};
std::vector<IsaState> isa_states();
// A wrong FLASHREL_CPU_ISA: the sentence to report, "" when it is fine.
std::string isa_error();
// Takes the place of FLASHREL_CPU_ISA for plans made from now on ("" returns to it); not while calls are running.
Status force_isa(const std::string& name);

}  // namespace flashrel::cpu
