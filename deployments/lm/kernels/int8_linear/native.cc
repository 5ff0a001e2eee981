// y = x W^T with int8 weights (one scale per output) and activations quantised to int8 in groups of 32 inputs.
//
// A group's products are summed exactly in int32; groups are added in f32 in their own order. So a row's result depends
// on that row alone: not on the other rows, nor on how the work was cut up.
//
// Weights lie as the dot-product instruction reads them, [outputs / 16][inputs / 4][16][4], shifted by 128 to be
// unsigned. The shift is taken back through each group's sum of activations, which is where its sum starts.
// Grouped activations as in llama.cpp's Q8_0; VNNI: Intel SDM, VPDPBUSD.
#include <immintrin.h>

#include <cstring>
#include <limits>
#include <vector>

#include "../parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace outrider {
namespace {

constexpr int kGroup = 32;
constexpr int kOutputs = 16;
constexpr int kRows = 8;
constexpr int kShift = 128;

// Up to 8 rows of activations, interleaved so that a tile reads one stream.
struct RowTile {
  int rows;
  int32_t* levels;  // [inputs / 4][rows], four int8 each
  float* steps;     // [groups][rows]
  int32_t* starts;  // [groups][rows]: minus 128 times the sum of the levels
};

void quantise_group(const float* x, int64_t left, const RowTile& tile, int row, int64_t group) {
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

void quantise(const float* x, int64_t inputs, const RowTile& tile) {
  for (int row = 0; row < tile.rows; ++row) {
    for (int64_t at = 0; at < inputs; at += kGroup) {
      quantise_group(x + row * inputs + at, inputs - at, tile, row, at / kGroup);
    }
  }
}

struct Outputs {
  const uint8_t* weights;  // of the first block
  const float* scales;     // of the first output
  float* y;                // row 0, first output
  int64_t left;            // outputs from the first on
  int64_t stride;          // outputs in a row of y
};

// Rows x blocks accumulators stay in registers over all inputs.
template <int Rows, int Blocks>
void multiply(const RowTile& tile, int64_t groups, const Outputs& out) {
  const int64_t block_bytes = groups * kGroup * kOutputs;
  __m512 sums[Rows][Blocks];
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_ps();
  const uint8_t* weights = out.weights;
  const int32_t* levels = tile.levels;
  for (int64_t group = 0; group < groups; ++group) {
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
    const __mmask16 there = lanes(out.left - kOutputs * b);
    const __m512 scale = _mm512_maskz_loadu_ps(there, out.scales + kOutputs * b);
    for (int r = 0; r < Rows; ++r)
      _mm512_mask_storeu_ps(out.y + r * out.stride + kOutputs * b, there, _mm512_mul_ps(sums[r][b], scale));
  }
}

using Multiply = void (*)(const RowTile&, int64_t, const Outputs&);

// Few rows take several blocks of outputs at once: one chain of sums alone would wait for itself.
template <int Blocks>
Multiply multiply_for(int rows) {
  constexpr Multiply all[kRows] = {multiply<1, Blocks>, multiply<2, Blocks>, multiply<3, Blocks>, multiply<4, Blocks>,
                                   multiply<5, 1>,      multiply<6, 1>,      multiply<7, 1>,      multiply<8, 1>};
  return all[rows - 1];
}

int blocks_at_once(int rows) { return rows <= 4 ? 4 : 1; }

struct Call {
  const float* x;
  const uint8_t* weights;
  const float* scales;
  float* y;
  int64_t rows, inputs, outputs, blocks, groups;
};

std::vector<RowTile> cut_rows(const Call& call, std::vector<int32_t>& memory) {
  const int64_t per_row = call.groups * (kGroup / 4 + 2);
  memory.resize(call.rows * per_row);
  std::vector<RowTile> tiles;
  for (int64_t row = 0; row < call.rows; row += kRows) {
    const int rows = static_cast<int>(std::min<int64_t>(kRows, call.rows - row));
    int32_t* levels = memory.data() + row * per_row;
    auto* steps = reinterpret_cast<float*>(levels + rows * call.groups * (kGroup / 4));
    tiles.push_back({rows, levels, steps, reinterpret_cast<int32_t*>(steps + rows * call.groups)});
  }
  return tiles;
}

// Blocks outside, rows inside: a block's weights stay in the innermost cache for all rows.
void multiply_blocks(const Call& call, const std::vector<RowTile>& tiles, int64_t first, int64_t end) {
  const int wide = blocks_at_once(tiles.front().rows);
  for (int64_t block = first; block < end;) {
    const int64_t at = block * kOutputs;
    const bool several = wide > 1 && end - block >= wide;
    for (size_t i = 0; i < tiles.size(); ++i) {
      const Outputs out{call.weights + at * call.groups * kGroup, call.scales + at,
                        call.y + static_cast<int64_t>(i) * kRows * call.outputs + at, call.outputs - at, call.outputs};
      (several ? multiply_for<4>(tiles[i].rows) : multiply_for<1>(tiles[i].rows))(tiles[i], call.groups, out);
    }
    block += several ? wide : 1;
  }
}

ffi::Error int8_linear(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> live,
                       ffi::Buffer<ffi::U8> weights, ffi::Buffer<ffi::F32> scales, ffi::ResultBuffer<ffi::F32> y) {
  const auto sizes = x.dimensions();
  const auto packed = weights.dimensions();
  if (sizes.size() != 2 || packed.size() != 3 || packed[2] != 4 * kOutputs || packed[1] * 4 % kGroup) {
    return ffi::Error::InvalidArgument("int8_linear: x must be [rows, inputs], weights packed for this kernel");
  }
  Call call{x.typed_data(), weights.typed_data(), scales.typed_data(), y->typed_data()};
  call.rows = std::clamp<int64_t>(*live.typed_data(), 0, sizes[0]);
  call.inputs = sizes[1];
  call.outputs = static_cast<int64_t>(scales.element_count());
  call.blocks = packed[0];
  call.groups = packed[1] * 4 / kGroup;
  if ((call.inputs + kGroup - 1) / kGroup != call.groups || (call.outputs + kOutputs - 1) / kOutputs != call.blocks) {
    return ffi::Error::InvalidArgument("int8_linear: x, weights and scales do not belong together");
  }
  std::memset(call.y + call.rows * call.outputs, 0, (sizes[0] - call.rows) * call.outputs * sizeof(float));

  // One per thread and kept: a window calls this a hundred times.
  static thread_local std::vector<int32_t> memory;
  const std::vector<RowTile> tiles = cut_rows(call, memory);
  if (tiles.empty()) return ffi::Error::Success();
  const auto quantise_tile = [&](int64_t tile) {
    quantise(call.x + tile * kRows * call.inputs, call.inputs, tiles[tile]);
  };
  const auto rows = static_cast<int64_t>(tiles.size());
  if (rows <= 2) {
    for (int64_t tile = 0; tile < rows; ++tile) quantise_tile(tile);
  } else {
    parallel(pool, rows, quantise_tile);
  }
  // Pieces small enough to share evenly, in whole numbers of the widest tile's blocks.
  const int64_t share = std::max<int64_t>(1, call.blocks / (6 * std::max<int64_t>(1, pool.num_threads())));
  const int64_t piece = (share + 3) / 4 * 4;
  parallel(pool, (call.blocks + piece - 1) / piece, [&](int64_t chunk) {
    multiply_blocks(call, tiles, chunk * piece, std::min(call.blocks, (chunk + 1) * piece));
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(OutriderInt8Linear, int8_linear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

}  // namespace outrider
