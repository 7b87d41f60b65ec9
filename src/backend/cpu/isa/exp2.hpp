// Constants of 2^x, shared by every instruction set.
#pragma once

namespace flashrel::cpu {
namespace {

// Adding and subtracting 1.5 * 2^23 rounds a float below 2^22 to an integer, whose bits are then in the low mantissa.
constexpr float kExp2Magic = 12582912.0f;
constexpr float kExp2Least = -126.0f;
// 2^f = 1 + sum kExp2[i] f^(i+1) on [-1/2, 1/2], relative error 2^-23.4 (minimax by Lawson's iteration).
constexpr float kExp2[5] = {0.693146978f, 0.240222421f, 0.0555073374f, 0.00967151279f, 0.00132647273f};

}  // namespace
}  // namespace flashrel::cpu
