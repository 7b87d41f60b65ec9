// Deterministic numbers for generated problems: a pure function of (seed, stream, index), so that any element can be made
// alone, in any order, on any thread and any machine.
#pragma once

#include <cstdint>

namespace flashrel::check {

// Finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class Random {
 public:
  constexpr Random(std::uint64_t seed, std::uint64_t stream)
      : key_(mix_bits(mix_bits(seed + 0x9e3779b97f4a7c15ull) ^ (stream * 0xd1342543de82ef95ull))) {}

  constexpr std::uint64_t bits(std::uint64_t index) const { return mix_bits(key_ + (index + 1) * 0x9e3779b97f4a7c15ull); }
  // [0, 1)
  constexpr float uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 40) * 0x1p-24f; }
  // [0, n)
  constexpr std::int64_t below(std::uint64_t index, std::int64_t n) const {
    return static_cast<std::int64_t>(bits(index) % static_cast<std::uint64_t>(n));
  }
  // Mean 0, variance 1, |x| < 3.47: the sum of four uniforms, close enough to a normal and the same on every machine.
  constexpr float normal(std::uint64_t index) const {
    const std::uint64_t x = bits(index);
    const auto sum = static_cast<std::int64_t>((x & 0xffff) + ((x >> 16) & 0xffff) + ((x >> 32) & 0xffff) + (x >> 48));
    return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
  }

 private:
  std::uint64_t key_;
};

}  // namespace flashrel::check
