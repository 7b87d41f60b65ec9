// What this machine can do at most, measured: for `flashrel bench` and the tuning notes.
#pragma once

#include <string>

#include "base/types.hpp"

namespace flashrel::cpu {

// Matrix arithmetic in registers on all threads, with the instruction that tensors of this dtype get from the
// instruction set in use (isa_in_use), in 1e9 operations a second. Takes about half a second.
double measure_matrix_gflops(DType dtype);
// Name of the instruction set that serves this dtype ("amx_bf16" leaves fp16 and float32 to "avx512").
std::string matrix_isa(DType dtype);
// Sum over a buffer of 512 MiB, larger than the caches, on all threads, in 1e9 bytes a second. About a second.
double measure_read_gb_per_s();

}  // namespace flashrel::cpu
