// AMX: 16 x 16 x 32 tiles of bf16 with float32 sums, for bf16 tensors.
#include "backend/cpu/isa/avx512_simd.hpp"
#include "backend/cpu/kernel.hpp"

namespace flashrel::cpu {
namespace {

// Tiles 0-3: sums (2 x 2), 4-5: rows of A, 6-7: columns of B; all 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// In static memory: the intrinsic does not tell the compiler that it reads all 64 bytes.
constexpr TileConfig kTileConfig;

void enter() { _tile_loadconfig(&kTileConfig); }
void leave() { _tile_release(); }

struct AmxMatrix {
  using Element = std::uint16_t;
  static constexpr int kRowBlock = 32;

  // 32 (or with kRowTiles = 1: 16) rows x 32 columns. Rows past m are computed and stored too.
  template <int kRowTiles>
  static void block(const Gemm<Element>& g, int column) {
    float* c = g.c + column;
    const long c_bytes = g.ldc * 4, a_bytes = g.lda * 2;
    if (g.accumulate) {
      _tile_loadd(0, c, c_bytes);
      _tile_loadd(1, c + 16, c_bytes);
      if constexpr (kRowTiles == 2) {
        _tile_loadd(2, c + 16 * g.ldc, c_bytes);
        _tile_loadd(3, c + 16 * g.ldc + 16, c_bytes);
      }
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const Element* a = g.a;
    const Element* b = g.b + (column / kPanel) * g.b_panel;
    for (int k = 0; k < g.k; k += 32) {
      _tile_loadd(6, b + k * kPanel, 64);
      _tile_loadd(4, a + k, a_bytes);
      _tile_loadd(7, b + g.b_panel + k * kPanel, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kRowTiles == 2) {
        _tile_loadd(5, a + 16 * g.lda + k, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    add_bias<kRowTiles>(g, column);
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 16, c_bytes);
    if constexpr (kRowTiles == 2) {
      _tile_stored(2, c + 16 * g.ldc, c_bytes);
      _tile_stored(3, c + 16 * g.ldc + 16, c_bytes);
    }
  }

  template <int kRowTiles>
  static void add_bias(const Gemm<Element>& g, int column) {
    const DirectBias<Element>& bias = g.bias;
    for (int pair = 0; pair < bias.n_pairs; ++pair) {
      // The next two tokens stand two columns back.
      const Element* p0 = bias.proj[0] + 2 * (column - 2 * pair);
      const Element* p1 = bias.proj[1] + 2 * (column - 2 * pair);
      for (int term = 0; term < bias.n_terms; ++term) {
        const Element* rel = bias.rel + term * kTermElems + pair * 32;
        _tile_loadd(4, rel, bias.rel_ld * 2);
        _tile_loadd(6, p0, bias.proj_ld * 2);
        _tile_loadd(7, p0 + 32, bias.proj_ld * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kRowTiles == 2) {
          _tile_loadd(5, rel + 16 * bias.rel_ld, bias.rel_ld * 2);
          _tile_loadd(6, p1, bias.proj_ld * 2);
          _tile_loadd(7, p1 + 32, bias.proj_ld * 2);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
  }

  static void gemm(const Gemm<Element>& g) {
    asm volatile("" ::: "memory");  // tile loads do not tell the compiler what they read: finish all stores first
    for (int column = 0; column < g.n; column += 32) {
      if (g.m > 16)
        block<2>(g, column);
      else
        block<1>(g, column);
    }
  }
};

double amx_matrix_loop(long iterations) {
  enter();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (long i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  leave();
  return static_cast<double>(iterations) * 4 * 16 * 16 * 32 * 2;
}

}  // namespace

extern const IsaKernels kAmxBf16Kernels;
const IsaKernels kAmxBf16Kernels = {
    .name = "amx_bf16",
    .bf16_operands = true,
    .direct_bias = true,
    .enter = &enter,
    .leave = &leave,
    .run_item = &run_item<AmxMatrix>,
    .matrix_loop = &amx_matrix_loop,
    .read_loop = &float_read_loop,
};

}  // namespace flashrel::cpu
