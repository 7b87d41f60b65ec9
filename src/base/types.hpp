// The small enumerations that travel through every layer, and 16-bit floating point on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/host_device.hpp"

namespace flashrel {

enum class DType : std::int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kInt32 = 3 };  // = flashrel_dtype
enum class MemoryKind : std::int32_t { kHost = 0, kCuda = 1 };                              // = flashrel_memory
enum class RelEdge : std::int32_t { kZero = 0, kClamp = 1 };                                // = flashrel_edge
enum class BiasMode : std::int32_t { kNone, kLogits, kFused };

// How the bias reaches a score; kNone when there is no bias.
enum class Route : std::int32_t { kNone, kScoreMod, kSheared, kFused };

FLASHREL_HD constexpr std::size_t size_of(DType type) { return type == DType::kFloat32 || type == DType::kInt32 ? 4 : 2; }

constexpr const char* name_of(DType type) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "int32"};
  return kNames[static_cast<int>(type)];
}
constexpr const char* name_of(BiasMode mode) {
  constexpr const char* kNames[] = {"none", "logits", "fused"};
  return kNames[static_cast<int>(mode)];
}
constexpr const char* name_of(Route route) {
  constexpr const char* kNames[] = {"none", "score_mod", "sheared", "fused"};
  return kNames[static_cast<int>(route)];
}

// bfloat16 is the upper half of a float32.
FLASHREL_HD constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
FLASHREL_HD constexpr std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE 754 binary16, subnormals included.
FLASHREL_HD constexpr float fp16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
FLASHREL_HD constexpr std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal, the float adder rounds for us
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return sign | static_cast<std::uint16_t>(rounded >> 13);
}

// One element of a floating-point tensor, as float32.
FLASHREL_HD float load_float(const void* data, DType type, std::int64_t index) {
  switch (type) {
    case DType::kBFloat16: return bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kFloat16: return fp16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

FLASHREL_HD void store_float(void* data, DType type, std::int64_t index, float value) {
  switch (type) {
    case DType::kBFloat16: static_cast<std::uint16_t*>(data)[index] = float_to_bf16(value); break;
    case DType::kFloat16: static_cast<std::uint16_t*>(data)[index] = float_to_fp16(value); break;
    default: static_cast<float*>(data)[index] = value;
  }
}

}  // namespace flashrel
