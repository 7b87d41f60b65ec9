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
  static void block(const Gemm<Element>& g, int row, int column) {
    float* c = g.c + row * g.ldc + column;
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
    const Element* a = g.a + row * g.lda;
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
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 16, c_bytes);
    if constexpr (kRowTiles == 2) {
      _tile_stored(2, c + 16 * g.ldc, c_bytes);
      _tile_stored(3, c + 16 * g.ldc + 16, c_bytes);
    }
  }

  static void gemm(const Gemm<Element>& g) {
    asm volatile("" ::: "memory");  // tile loads do not tell the compiler what they read: finish all stores first
    for (int row = 0; row < g.m; row += 32)
      for (int column = 0; column < g.n; column += 32) {
        if (g.m - row > 16)
          block<2>(g, row, column);
        else
          block<1>(g, row, column);
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
const IsaKernels kAmxBf16Kernels = {"amx_bf16", true, &enter, &leave, &run_item<AmxMatrix>, &amx_matrix_loop, &float_read_loop};

}  // namespace flashrel::cpu
