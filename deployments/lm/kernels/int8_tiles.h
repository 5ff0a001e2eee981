// Products of rows quantised to int8 in groups of 32 inputs with int8 weights (one scale per output): what the kernels
// for one matrix and for many have in common.
//
// A group's products are summed exactly in int32; groups are added in f32 in their own order. So a row's result depends
// on that row alone: not on the other rows, nor on how the work was cut up.
//
// Weights lie as the dot-product instruction reads them, [outputs / 16][inputs / 4][16][4], shifted by 128 to be
// unsigned. The shift is taken back through each group's sum of activations, which is where its sum starts.
// Grouped activations as in llama.cpp's Q8_0; VNNI: Intel SDM, VPDPBUSD.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "parallel.h"

namespace outrider {

constexpr int kGroup = 32;
constexpr int kOutputs = 16;
constexpr int kRows = 8;
constexpr int kShift = 128;

// Up to 8 rows: where they come from, where their results go, and between the two their levels, interleaved so that a
// product reads one stream.
struct RowTile {
  int rows;
  const float* x[kRows];
  float* y[kRows];
  int32_t* levels;  // [inputs / 4][rows], four int8 each
  float* steps;     // [groups][rows]
  int32_t* starts;  // [groups][rows]: minus 128 times the sum of the levels
};

// One matrix.
struct Matrix {
  const uint8_t* weights;
  const float* scales;
  int64_t inputs, outputs, groups, blocks;

  bool is_whole() const {
    return (inputs + kGroup - 1) / kGroup == groups && (outputs + kOutputs - 1) / kOutputs == blocks;
  }
};

inline void quantise_group(const float* x, int64_t left, const RowTile& tile, int row, int64_t group) {
  __m512 values[2] = {_mm512_maskz_loadu_ps(lanes(left), x), _mm512_maskz_loadu_ps(lanes(left - 16), x + 16)};
  const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(values[0]), _mm512_abs_ps(values[1])));
  // A value that is no number must not come out as one.
  const bool is_finite = most <= std::numeric_limits<float>::max() &&
                         !_mm512_cmp_ps_mask(values[0], values[0], _CMP_UNORD_Q) &&
                         !_mm512_cmp_ps_mask(values[1], values[1], _CMP_UNORD_Q);
  if (!is_finite) values[0] = values[1] = _mm512_setzero_ps();
  const __m512 inverse = _mm512_set1_ps(is_finite && most > 0 ? 127.0f / most : 0.0f);
  alignas(16) int8_t levels[kGroup];
  __m512i sum = _mm512_setzero_si512();
  for (int half = 0; half < 2; ++half) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(values[half], inverse));
    sum = _mm512_add_epi32(sum, rounded);
    _mm_store_si128(reinterpret_cast<__m128i*>(levels + 16 * half), _mm512_cvtsepi32_epi8(rounded));
  }
  int32_t* out = tile.levels + group * (kGroup / 4) * tile.rows + row;
  for (int quad = 0; quad < kGroup / 4; ++quad) std::memcpy(out + quad * tile.rows, levels + 4 * quad, 4);
  tile.steps[group * tile.rows + row] = is_finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
  tile.starts[group * tile.rows + row] = -kShift * _mm512_reduce_add_epi32(sum);
}

inline void quantise(const RowTile& tile, int64_t inputs) {
  for (int row = 0; row < tile.rows; ++row) {
    for (int64_t at = 0; at < inputs; at += kGroup) {
      quantise_group(tile.x[row] + at, inputs - at, tile, row, at / kGroup);
    }
  }
}

// Rows x blocks accumulators stay in registers over all inputs.
template <int Rows, int Blocks>
void multiply(const RowTile& tile, const Matrix& matrix, int64_t block) {
  const int64_t block_bytes = matrix.groups * kGroup * kOutputs;
  const int64_t first = block * kOutputs;
  __m512 sums[Rows][Blocks];
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_ps();
  const uint8_t* weights = matrix.weights + block * block_bytes;
  const int32_t* levels = tile.levels;
  for (int64_t group = 0; group < matrix.groups; ++group) {
    __m512i dots[Rows][Blocks];
    for (int r = 0; r < Rows; ++r)
      for (int b = 0; b < Blocks; ++b) dots[r][b] = _mm512_set1_epi32(tile.starts[group * Rows + r]);
#pragma GCC unroll 8
    for (int quad = 0; quad < kGroup / 4; ++quad) {
      __m512i weight[Blocks];
      for (int b = 0; b < Blocks; ++b) weight[b] = _mm512_loadu_si512(weights + b * block_bytes);
      for (int r = 0; r < Rows; ++r) {
        const __m512i level = _mm512_set1_epi32(levels[r]);
        for (int b = 0; b < Blocks; ++b) dots[r][b] = _mm512_dpbusd_epi32(dots[r][b], weight[b], level);
      }
      weights += 64;
      levels += Rows;
    }
    for (int r = 0; r < Rows; ++r) {
      const __m512 step = _mm512_set1_ps(tile.steps[group * Rows + r]);
      for (int b = 0; b < Blocks; ++b)
        sums[r][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][b]), step, sums[r][b]);
    }
  }
  for (int b = 0; b < Blocks; ++b) {
    const __mmask16 there = lanes(matrix.outputs - first - kOutputs * b);
    const __m512 scale = _mm512_maskz_loadu_ps(there, matrix.scales + first + kOutputs * b);
    for (int r = 0; r < Rows; ++r)
      _mm512_mask_storeu_ps(tile.y[r] + first + kOutputs * b, there, _mm512_mul_ps(sums[r][b], scale));
  }
}

using Multiply = void (*)(const RowTile&, const Matrix&, int64_t);

// Few rows take several blocks of outputs at once: one chain of sums alone would wait for itself.
template <int Blocks>
Multiply multiply_for(int rows) {
  constexpr Multiply all[kRows] = {multiply<1, Blocks>, multiply<2, Blocks>, multiply<3, Blocks>, multiply<4, Blocks>,
                                   multiply<5, 1>,      multiply<6, 1>,      multiply<7, 1>,      multiply<8, 1>};
  return all[rows - 1];
}

inline int blocks_at_once(int rows) { return rows <= 4 ? 4 : 1; }

// How many numbers a row's levels, steps and starts take.
inline int64_t memory_of_row(const Matrix& matrix) { return matrix.groups * (kGroup / 4 + 2); }

// A tile of so many rows in this memory; the caller says which.
inline RowTile make_tile(int rows, int64_t groups, int32_t* memory) {
  auto* steps = reinterpret_cast<float*>(memory + rows * groups * (kGroup / 4));
  return {rows, {}, {}, memory, steps, reinterpret_cast<int32_t*>(steps + rows * groups)};
}

// Blocks outside, rows inside: a block's weights stay in the innermost cache for all rows.
inline void multiply_blocks(const Matrix& matrix, std::span<const RowTile> tiles, int64_t first, int64_t end) {
  const int wide = blocks_at_once(tiles.front().rows);
  for (int64_t block = first; block < end;) {
    const bool several = wide > 1 && end - block >= wide;
    for (const RowTile& tile : tiles)
      (several ? multiply_for<4>(tile.rows) : multiply_for<1>(tile.rows))(tile, matrix, block);
    block += several ? wide : 1;
  }
}

// How many blocks are worth a chunk: small enough to share evenly, in whole numbers of the widest tile's blocks.
inline int64_t blocks_in_chunk(int64_t blocks, int64_t threads) {
  const int64_t share = std::max<int64_t>(1, blocks / (6 * std::max<int64_t>(1, threads)));
  return (share + 3) / 4 * 4;
}

}  // namespace outrider
