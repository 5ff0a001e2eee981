// Each row times the matrices of the experts it was assigned to, all int8, as int8_tiles.h describes. An expert without
// rows is not read. A row may arrive as a gate and what it lets through; the two meet as the row is quantised.
#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "../int8_tiles.h"
#include "../parallel.h"
#include "../vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace outrider {
namespace {

enum class Gate { kNone, kSilu, kGeluTanh };

__m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 small = exp_negative(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_div_ps(_mm512_mask_mov_ps(one, negative, small), _mm512_add_ps(one, small));
}

// Half of 1 + tanh(z) is the sigmoid of 2 z; Hendrycks and Gimpel, 2016, for z.
__m512 gelu_tanh(__m512 x) {
  const __m512 cube = _mm512_mul_ps(x, _mm512_mul_ps(x, x));
  const __m512 z = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
  return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(z, _mm512_set1_ps(1.5957691216f))));
}

__m512 opened(Gate gate, __m512 x) { return gate == Gate::kSilu ? _mm512_mul_ps(x, sigmoid(x)) : gelu_tanh(x); }

// Each row is as many gates, then what they let through.
void quantise_gated(const RowTile& tile, int64_t inputs, Gate gate) {
  for (int row = 0; row < tile.rows; ++row) {
    for (int64_t at = 0; at < inputs; at += kGroup) {
      alignas(64) float values[kGroup];
      for (int half = 0; half < kGroup; half += 16) {
        const __mmask16 there = lanes(inputs - at - half);
        const float* gates = tile.x[row] + at + half;
        const __m512 through = _mm512_maskz_loadu_ps(there, gates + inputs);
        _mm512_store_ps(values + half, _mm512_mul_ps(opened(gate, _mm512_maskz_loadu_ps(there, gates)), through));
      }
      quantise_group(values, inputs - at, tile, row, at / kGroup);
    }
  }
}

struct Call {
  const float* x;
  const int32_t* chosen;
  float* y;
  Matrix first;  // the first expert's
  int64_t experts;
  int64_t assignments;  // of live rows
  int64_t sharing;      // assignments that read the same row of x
  Gate gate;

  int64_t values_in_row() const { return gate == Gate::kNone ? first.inputs : 2 * first.inputs; }
};

// The tiles of one expert.
struct Share {
  Matrix matrix;
  size_t first, count;
};

struct Plan {
  std::vector<RowTile> tiles;
  std::vector<Share> shares;
};

Matrix matrix_of(const Call& call, int64_t expert) {
  Matrix matrix = call.first;
  matrix.weights += expert * matrix.blocks * matrix.groups * kGroup * kOutputs;
  matrix.scales += expert * matrix.outputs;
  return matrix;
}

// Assignments by expert, in their own order within one; and where each expert's end.
void sort_by_expert(const Call& call, std::vector<int32_t>& sorted, std::vector<int64_t>& ends) {
  ends.assign(call.experts + 1, 0);
  for (int64_t i = 0; i < call.assignments; ++i) ++ends[call.chosen[i] + 1];
  for (int64_t expert = 0; expert < call.experts; ++expert) ends[expert + 1] += ends[expert];
  sorted.resize(call.assignments);
  for (int64_t i = 0; i < call.assignments; ++i) sorted[ends[call.chosen[i]]++] = static_cast<int32_t>(i);
}

Plan make_plan(const Call& call, std::vector<int32_t>& memory) {
  std::vector<int32_t> sorted;
  std::vector<int64_t> ends;
  sort_by_expert(call, sorted, ends);
  const int64_t per_row = memory_of_row(call.first);
  memory.resize(call.assignments * per_row);
  Plan plan;
  int64_t at = 0;
  for (int64_t expert = 0; expert < call.experts; ++expert) {
    if (ends[expert] == at) continue;
    const size_t first = plan.tiles.size();
    while (at < ends[expert]) {
      const int count = static_cast<int>(std::min<int64_t>(kRows, ends[expert] - at));
      RowTile& tile = plan.tiles.emplace_back(make_tile(count, call.first.groups, memory.data() + at * per_row));
      for (int row = 0; row < count; ++row, ++at) {
        tile.x[row] = call.x + sorted[at] / call.sharing * call.values_in_row();
        tile.y[row] = call.y + sorted[at] * call.first.outputs;
      }
    }
    plan.shares.push_back({matrix_of(call, expert), first, plan.tiles.size() - first});
  }
  return plan;
}

bool knows_experts(const Call& call) {
  return std::ranges::all_of(std::span(call.chosen, call.assignments),
                             [&](int32_t expert) { return expert >= 0 && expert < call.experts; });
}

void run(ffi::ThreadPool& pool, const Call& call) {
  // One per thread and kept: a window calls this a hundred times.
  static thread_local std::vector<int32_t> memory;
  const Plan plan = make_plan(call, memory);
  const Matrix& first = call.first;
  parallel(pool, static_cast<int64_t>(plan.tiles.size()), [&](int64_t tile) {
    if (call.gate == Gate::kNone) {
      quantise(plan.tiles[tile], first.inputs);
    } else {
      quantise_gated(plan.tiles[tile], first.inputs, call.gate);
    }
  });
  const int64_t piece = blocks_in_chunk(first.blocks, pool.num_threads());
  const int64_t pieces = (first.blocks + piece - 1) / piece;
  parallel(pool, static_cast<int64_t>(plan.shares.size()) * pieces, [&](int64_t chunk) {
    const Share& share = plan.shares[chunk / pieces];
    const int64_t begin = chunk % pieces * piece;
    multiply_blocks(share.matrix, std::span(plan.tiles).subspan(share.first, share.count), begin,
                    std::min(first.blocks, begin + piece));
  });
}

ffi::Error expert_linear(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> chosen,
                         ffi::Buffer<ffi::S32> live, ffi::Buffer<ffi::U8> weights, ffi::Buffer<ffi::F32> scales,
                         ffi::ResultBuffer<ffi::F32> y, std::string_view activation) {
  const auto sizes = x.dimensions(), choices = chosen.dimensions(), packed = weights.dimensions();
  const auto scaled = scales.dimensions();
  if (sizes.size() != 3 || choices.size() != 2 || packed.size() != 4 || scaled.size() != 2 ||
      packed[3] != 4 * kOutputs || packed[2] * 4 % kGroup) {
    return ffi::Error::InvalidArgument("expert_linear: x must be [rows, 1 or k, inputs], weights packed for this kernel");
  }
  if (activation != "" && activation != "silu" && activation != "gelu-tanh") {
    return ffi::Error::InvalidArgument("expert_linear: the activation must be silu, gelu-tanh or none");
  }
  const Gate gate = activation == "" ? Gate::kNone : activation == "silu" ? Gate::kSilu : Gate::kGeluTanh;
  const int64_t inputs = gate == Gate::kNone ? sizes[2] : sizes[2] / 2;
  const Matrix first{weights.typed_data(), scales.typed_data(), inputs, scaled[1], packed[2] * 4 / kGroup, packed[1]};
  const int64_t rows = choices[0], each = choices[1];
  if (!first.is_whole() || packed[0] != scaled[0] || sizes[0] != rows || (sizes[1] != 1 && sizes[1] != each) ||
      (gate != Gate::kNone && sizes[2] % 2)) {
    return ffi::Error::InvalidArgument("expert_linear: x, choices, weights and scales do not belong together");
  }
  const int64_t assignments = std::clamp<int64_t>(*live.typed_data(), 0, rows) * each;
  const Call call{x.typed_data(), chosen.typed_data(), y->typed_data(), first,
                  packed[0],      assignments,         each / sizes[1], gate};
  if (!knows_experts(call)) {
    return ffi::Error::InvalidArgument("expert_linear: a row was sent to an expert that there is none of");
  }
  run(pool, call);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(OutriderExpertLinear, expert_linear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("activation"));

}  // namespace outrider
