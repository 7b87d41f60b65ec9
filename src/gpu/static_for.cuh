// A loop whose index is a compile-time constant in every round, for bodies that index register arrays and hold loops of
// their own: the compiler unrolls those too late to keep the arrays in registers.
#pragma once

#include <type_traits>
#include <utility>

namespace flashrel::gpu {

template <class Body, int... kIndex>
__device__ __forceinline__ void static_for_impl(Body&& body, std::integer_sequence<int, kIndex...>) {
  (body(std::integral_constant<int, kIndex>{}), ...);
}

// body(std::integral_constant<int, i>) for i in [0, kCount).
template <int kCount, class Body>
__device__ __forceinline__ void static_for(Body&& body) {
  static_for_impl(body, std::make_integer_sequence<int, kCount>{});
}

}  // namespace flashrel::gpu
