// y = x W^T with int8 weights and activations quantised to int8 in groups of 32 inputs, as int8_tiles.h describes.
#include <cstring>
#include <vector>

#include "../int8_tiles.h"
#include "../parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace outrider {
namespace {

std::vector<RowTile> cut_rows(const float* x, float* y, int64_t rows, const Matrix& matrix,
                              std::vector<int32_t>& memory) {
  const int64_t per_row = memory_of_row(matrix);
  memory.resize(rows * per_row);
  std::vector<RowTile> tiles;
  for (int64_t first = 0; first < rows; first += kRows) {
    const int count = static_cast<int>(std::min<int64_t>(kRows, rows - first));
    RowTile& tile = tiles.emplace_back(make_tile(count, matrix.groups, memory.data() + first * per_row));
    for (int row = 0; row < count; ++row) {
      tile.x[row] = x + (first + row) * matrix.inputs;
      tile.y[row] = y + (first + row) * matrix.outputs;
    }
  }
  return tiles;
}

ffi::Error int8_linear(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> live,
                       ffi::Buffer<ffi::U8> weights, ffi::Buffer<ffi::F32> scales, ffi::ResultBuffer<ffi::F32> y) {
  const auto sizes = x.dimensions();
  const auto packed = weights.dimensions();
  if (sizes.size() != 2 || packed.size() != 3 || packed[2] != 4 * kOutputs || packed[1] * 4 % kGroup) {
    return ffi::Error::InvalidArgument("int8_linear: x must be [rows, inputs], weights packed for this kernel");
  }
  const Matrix matrix{weights.typed_data(), scales.typed_data(), sizes[1],
                      static_cast<int64_t>(scales.element_count()), packed[1] * 4 / kGroup, packed[0]};
  if (!matrix.is_whole()) {
    return ffi::Error::InvalidArgument("int8_linear: x, weights and scales do not belong together");
  }
  const int64_t rows = std::clamp<int64_t>(*live.typed_data(), 0, sizes[0]);
  float* results = y->typed_data();
  std::memset(results + rows * matrix.outputs, 0, (sizes[0] - rows) * matrix.outputs * sizeof(float));

  // One per thread and kept: a window calls this a hundred times.
  static thread_local std::vector<int32_t> memory;
  const std::vector<RowTile> tiles = cut_rows(x.typed_data(), results, rows, matrix, memory);
  if (tiles.empty()) return ffi::Error::Success();
  const auto quantise_tile = [&](int64_t tile) { quantise(tiles[tile], matrix.inputs); };
  const auto count = static_cast<int64_t>(tiles.size());
  if (count <= 2) {
    for (int64_t tile = 0; tile < count; ++tile) quantise_tile(tile);
  } else {
    parallel(pool, count, quantise_tile);
  }
  const int64_t piece = blocks_in_chunk(matrix.blocks, pool.num_threads());
  parallel(pool, (matrix.blocks + piece - 1) / piece, [&](int64_t chunk) {
    multiply_blocks(matrix, tiles, chunk * piece, std::min(matrix.blocks, (chunk + 1) * piece));
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
