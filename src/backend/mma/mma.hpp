// The mma backend: every case of the contract on CUDA memory, on any NVIDIA GPU from compute capability 8.0 up.
#pragma once

#include "backend/backend.hpp"

namespace flashrel::mma {

extern const Backend kBackend;

}  // namespace flashrel::mma
