// The sm90 backend: prefill on Hopper (compute capability 9.0 exactly) with TMA and wgmma. README.md describes it.
#pragma once

#include "backend/backend.hpp"

namespace flashrel::sm90 {

extern const Backend kBackend;

}  // namespace flashrel::sm90
