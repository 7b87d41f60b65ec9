// rel_proj as the kernels want it (isa.hpp, PackedProj): packed once a call, shared by all workers.
#pragma once

#include <cstddef>

#include "backend/cpu/isa.hpp"

namespace flashrel::cpu {

std::size_t packed_proj_bytes(const Problem& problem);
PackedProj pack_proj(const Problem& problem, const Tensors& tensors, const IsaKernels& kernels, void* memory);

}  // namespace flashrel::cpu
