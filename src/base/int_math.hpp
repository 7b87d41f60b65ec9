// Integer arithmetic that every layer shares.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace flashrel {

// Smallest q with q * b >= a, for a >= 0, b > 0.
template <class T>
FLASHREL_HD constexpr T ceil_div(T a, T b) {
  return static_cast<T>((a + b - 1) / b);
}

// Largest q with q * b <= a, for b > 0 and any a (C++ division rounds towards zero).
template <class T>
FLASHREL_HD constexpr T floor_div(T a, T b) {
  return static_cast<T>(a / b - (a % b < 0 ? 1 : 0));
}

// Smallest multiple of b that is >= a, for a >= 0, b > 0.
template <class T>
FLASHREL_HD constexpr T round_up(T a, T b) {
  return static_cast<T>(ceil_div(a, b) * b);
}

template <class T>
FLASHREL_HD constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}

template <class T>
FLASHREL_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

template <class T>
FLASHREL_HD constexpr T clamp_to(T x, T low, T high) {
  return min_of(max_of(x, low), high);
}

// Division of 0 <= n < 2^31 by a divisor known only at run time: one multiplication and a shift.
// Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994, section 4.
struct FastDiv {
  std::uint32_t divisor = 1, multiplier = 0, shift = 0;

  constexpr FastDiv() = default;
  constexpr explicit FastDiv(std::uint32_t d) : divisor(d) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - d)) / d + 1);
  }
  FLASHREL_HD constexpr int quotient(int n) const {
    const auto high =
        static_cast<std::uint32_t>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * multiplier) >> 32);
    return static_cast<int>((static_cast<std::uint64_t>(high) + static_cast<std::uint32_t>(n)) >> shift);
  }
  FLASHREL_HD constexpr int remainder(int n) const { return n - quotient(n) * static_cast<int>(divisor); }
};

}  // namespace flashrel
