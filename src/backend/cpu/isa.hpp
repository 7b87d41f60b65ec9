// What an instruction-set unit exports (isa/<name>.cpp) and what it is given. Nothing here may be emitted by a unit: plain
// structs and FLASHREL_HD functions only, so that code compiled for one instruction set never replaces shared code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/int_math.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "index/schedule.hpp"

namespace flashrel::cpu {

inline constexpr int kPanel = 16;        // columns of a packed matrix panel
inline constexpr int kKeyStep = 32;      // key ranges inside a tile are multiples of this
inline constexpr int kStepKeys = 256;    // keys that go through score, softmax and output together
inline constexpr int kMaxRowBlock = 32;  // rows likewise

// rel_proj, reversed and padded so that a row of bias runs along the keys: column c holds distance dist_max - c, zero
// (edge zero) or the nearest entry (edge clamp) outside the band.
// LAYOUT: panels of 16 columns; float: [panel][e][16]; bf16: [panel][e / 2][16][2]; e padded to d_rel_padded with zeros.
// LAYOUT, direct (see direct_bias): bf16 [16][n_columns][2]; row p < 8 holds e = 2p, 2p + 1, row 8 + p the same one column on.
struct PackedProj {
  const void* data = nullptr;
  int n_columns = 0;  // multiple of kPanel
  int dist_max = 0;   // distance of column 0
  int d_rel_padded = 0;
  bool direct = false;
  Range exact{0, 0};  // distances of the band that calls can reach; the rest of the columns is padding
};

// Can the bias be added while the scores are still in the matrix unit? A score tile's 16 rows must be whole tokens, and two
// tokens' rel must fit the 32 inner elements of one tile product. rel then carries rel_scale / softmax_scale, as a sum of
// two bf16 numbers, so that the scores' scale applies to both.
FLASHREL_HD bool direct_bias(const Problem& p) {
  const int group = p.n_q_heads / p.n_kv_heads;
  const double scale = p.softmax_scale < 0 ? -p.softmax_scale : p.softmax_scale;
  return p.bias == BiasMode::kFused && p.d_rel <= 16 && (group == 4 || group == 8 || group % 16 == 0) && scale > 1e-6;
}

// One call, as the units see it.
struct KernelArgs {
  Problem problem;
  Tensors tensors;
  PackedProj proj;
  int group = 1, tile_rows = 0, tile_keys = 0;
  float* part_out = nullptr;  // [slot][row][head_dim]
  float* part_lse = nullptr;  // [slot][row]
};

inline constexpr int kTermElems = 64, kMaxTerms = 3;  // of a row's rel: [kMaxTerms][2 token pairs][32]
inline constexpr int kRelTerms = kMaxTerms * kTermElems;

// Byte offsets inside one worker's scratch. Sized for float32 operands whatever the unit uses.
struct ScratchLayout {
  std::size_t q = 0;          // [tile_rows + kMaxRowBlock][d_padded]
  std::size_t rel = 0;        // [tile_rows + kMaxRowBlock][d_rel_padded]
  std::size_t rel_terms = 0;  // bf16 [tile_rows + kMaxRowBlock][kRelTerms], direct bias
  std::size_t acc = 0;        // float [tile_rows + kMaxRowBlock][d_padded], unnormalised output
  std::size_t state = 0;      // float [2][tile_rows + kMaxRowBlock]: maximum (base 2), least sum
  std::size_t sum = 0;        // float [tile_rows + kMaxRowBlock][16]
  std::size_t k = 0;          // packed [panel of 16 keys][d_padded][16]
  std::size_t v = 0;          // packed [panel of 16 of d_padded][tile_keys][16]
  std::size_t score = 0;      // float [kMaxRowBlock][score_ld]
  std::size_t weight = 0;     // bf16 [kMaxRowBlock][weight_ld]; float weights stand in the place of their scores
  std::size_t bias = 0;       // float [kMaxRowBlock][bias_ld]
  std::size_t stage = 0;      // [16 rows + one of zeros][d_padded]
  std::size_t rows = 0;       // pointers [2][tile_keys]: K and V rows of the tile
  std::size_t total = 0;
  int d_padded = 0, d_rel_padded = 0, score_ld = 0, weight_ld = 0, bias_ld = 0;
};

// Bias columns that one row block needs beside its keys: one a token, and alignment at both ends.
inline constexpr int kBiasSlack = kMaxRowBlock + 2 * kKeyStep;

FLASHREL_HD ScratchLayout scratch_layout(const Problem& problem, int tile_rows, int tile_keys) {
  ScratchLayout s;
  s.d_padded = round_up(problem.head_dim, kKeyStep);
  s.d_rel_padded = problem.bias == BiasMode::kFused ? round_up(problem.d_rel, kKeyStep) : 0;
  s.score_ld = kStepKeys + kPanel;
  s.weight_ld = kStepKeys + kKeyStep;
  s.bias_ld = problem.bias == BiasMode::kNone ? 0 : kStepKeys + kBiasSlack;
  const auto take = [&s](std::size_t elements, std::size_t size) {
    const std::size_t offset = s.total;
    s.total = round_up(s.total + elements * size, std::size_t{256});
    return offset;
  };
  const auto rows = static_cast<std::size_t>(tile_rows + kMaxRowBlock), keys = static_cast<std::size_t>(tile_keys);
  const auto d = static_cast<std::size_t>(s.d_padded);
  s.q = take(rows * d, 4);
  s.rel = take(rows * static_cast<std::size_t>(s.d_rel_padded), 4);
  s.rel_terms = take(direct_bias(problem) ? rows * kRelTerms : 0, 2);
  s.acc = take(rows * d, 4);
  s.state = take(2 * rows, 4);
  s.sum = take(rows * kPanel, 4);
  s.k = take(keys * d, 4);
  s.v = take(keys * d, 4);
  s.score = take(static_cast<std::size_t>(kMaxRowBlock * s.score_ld), 4);
  s.weight = take(static_cast<std::size_t>(kMaxRowBlock * s.weight_ld), 2);
  s.bias = take(static_cast<std::size_t>(kMaxRowBlock * s.bias_ld), 4);
  s.stage = take((kPanel + 1) * d, 4);
  s.rows = take(2 * keys, sizeof(void*));
  return s;
}

// A unit's table.
struct IsaKernels {
  const char* name = nullptr;
  bool bf16_operands = false;  // packed matrices hold bf16 pairs; else float32
  bool direct_bias = false;    // takes PackedProj::direct
  void (*enter)() = nullptr;   // before and after a thread runs items; may be null
  void (*leave)() = nullptr;
  void (*run_item)(const KernelArgs&, const WorkItem&, void* scratch) = nullptr;
  // Ceilings: runs `iterations` of register-resident matrix arithmetic and returns the operations done.
  double (*matrix_loop)(long iterations) = nullptr;
  // Sum of n floats, n a multiple of 64.
  float (*read_loop)(const float* data, std::size_t n) = nullptr;
};

extern const IsaKernels kScalarKernels;
#if defined(FLASHREL_X86)
extern const IsaKernels kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels, kAmxBf16Kernels;
#elif defined(FLASHREL_NEON)
extern const IsaKernels kNeonKernels;
#endif

// Table that serves tensors of this dtype and head_dim: the instruction set in use, or its float32 relative for fp16 and
// float32, which bf16 would cost their precision, and for rows too short to gain from bf16 matrices.
const IsaKernels& kernels_in_use(DType dtype, int head_dim = 128);

}  // namespace flashrel::cpu
