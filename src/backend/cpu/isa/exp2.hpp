// Constants of 2^x, shared by every instruction set.
#pragma once

namespace flashrel::cpu {
namespace {

// Adding and subtracting 1.5 * 2^23 rounds a float below 2^22 to an integer, whose bits are then in the low mantissa.
[[maybe_unused]] constexpr float kExp2Magic = 12582912.0f;
[[maybe_unused]] constexpr float kExp2Least = -126.0f;
// 2^f = 1 + sum kExp2[i] f^(i+1) on [-1/2, 1/2], relative error 2^-23.4 (minimax by Lawson's iteration).
[[maybe_unused]] constexpr float kExp2[5] = {0.693146978f, 0.240222421f, 0.0555073374f, 0.00967151279f, 0.00132647273f};
// The same on [0, 1), relative error 2^-23.5.
[[maybe_unused]] constexpr float kExp2Floor[5] = {0.693151312f, 0.24016445f, 0.0557999136f, 0.0090170296f, 0.00186713041f};

}  // namespace
}  // namespace flashrel::cpu
