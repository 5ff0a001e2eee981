// Softmax attention of tiles of rows to a paged bf16 cache, in steps of 64 positions (running softmax, Milakov and
// Gimelshein, 2018). Products are of bf16 pairs, sums in f32 and in order of position, query by query: a row's result
// depends on its own queries and prefix alone. Positions a row may not see weigh exactly nothing, and steps that begin
// at multiples of 64 hold the same positions for every row, whatever its window or its tile.
#include <immintrin.h>

#include <cstring>
#include <vector>

#include "../parallel.h"
#include "../vectors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace outrider {
namespace {

constexpr int kVector = 16;
constexpr int kPairs = 2 * kVector;  // bf16 values in a vector
constexpr int kStep = 64;
constexpr int kAtOnce = 6;  // queries whose sums stay in registers
constexpr float kMasked = -1e30f;

struct Call {
  const float* queries;     // [rows, heads, width]
  const uint16_t* cache;    // [pages, 2, kv_heads, page_size, width]
  const int32_t* rows;      // [tiles, lanes]
  const int32_t* positions; // [tiles, lanes], -1 for an empty lane
  const int32_t* pages;     // [tiles, slot_pages]
  float* out;               // [rows, heads, width]
  int64_t heads, kv_heads, width, page_size, lanes, slot_pages;
  float scale;
  int64_t window;

  int64_t group() const { return heads / kv_heads; }
};

// The queries of one tile that share a head of keys and values.
class Item {
 public:
  Item(const Call& call, int64_t tile, int64_t kv_head) : call_(call), tile_(tile), kv_head_(kv_head) {
    const int32_t* positions = call.positions + tile * call.lanes;
    first_ = positions[0];
    for (lanes_ = 0; lanes_ < call.lanes && positions[lanes_] >= 0; ++lanes_) {
      first_ = std::min<int64_t>(first_, positions[lanes_]);
      last_ = std::max<int64_t>(last_, positions[lanes_]);
    }
    first_ = hidden(first_);
    count_ = lanes_ * call.group();
    static thread_local std::vector<float> memory;
    const int64_t width = call.width;
    memory.resize(count_ * (width + kStep + kStep / 2 + kVector + 1 + width / 2) + kVector * width / 2);
    sums_ = memory.data();
    scores_ = sums_ + count_ * width;
    peaks_ = scores_ + count_ * kStep;
    masses_ = peaks_ + count_;
    weights_ = reinterpret_cast<int32_t*>(masses_ + count_ * kVector);
    queries_ = weights_ + count_ * kStep / 2;
    keys_ = queries_ + count_ * width / 2;
  }

  void run() {
    load();
    for (int64_t begin = first_ / kStep * kStep; begin <= last_; begin += kStep) {
      const int64_t from = std::max<int64_t>(first_ - begin, 0) / kVector * kVector;
      const int64_t count = std::min<int64_t>(kStep, last_ + 1 - begin);
      for (int64_t at = from; at < count; at += kVector) score(begin, at);
      for (int64_t query = 0; query < count_; ++query) weigh(query, begin);
      for (int64_t at = from; at < count;) at += gather(begin, at, count - at);
    }
    store();
  }

 private:
  // How many positions lie before the window of a row at `position`.
  int64_t hidden(int64_t position) const { return std::max<int64_t>(position + 1 - call_.window, 0); }

  float* row_of(float* all, int64_t query) const {
    const int64_t row = call_.rows[tile_ * call_.lanes + query / call_.group()];
    return all + (row * call_.heads + kv_head_ * call_.group() + query % call_.group()) * call_.width;
  }

  const uint16_t* cached(int64_t position, int64_t half) const {
    const int64_t page = call_.pages[tile_ * call_.slot_pages + position / call_.page_size];
    const int64_t head = (2 * page + half) * call_.kv_heads + kv_head_;
    return call_.cache + (head * call_.page_size + position % call_.page_size) * call_.width;
  }

  void load() {
    const __m512 scale = _mm512_set1_ps(call_.scale);
    for (int64_t query = 0; query < count_; ++query) {
      const float* from = row_of(const_cast<float*>(call_.queries), query);
      int32_t* to = queries_ + query * call_.width / 2;
      for (int64_t i = 0; i < call_.width; i += kVector)
        store_bf16(to + i / 2, _mm512_mul_ps(_mm512_loadu_ps(from + i), scale));
    }
    std::fill_n(peaks_, count_, kMasked);
    std::fill_n(sums_, count_ * call_.width, 0.0f);
    std::fill_n(masses_, count_ * kVector, 0.0f);
  }

  // Scores of 16 positions. They lie on one page, whose size is a multiple of 16; those past the end are masked later.
  void score(int64_t begin, int64_t at) {
    const uint16_t* from = cached(begin + at, 0);
    for (int64_t i = 0; i < call_.width; i += kPairs) {
      const int pairs = static_cast<int>(std::min<int64_t>(kVector, (call_.width - i) / 2));
      __m512 rows[kVector];
      for (int row = 0; row < kVector; ++row)
        rows[row] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(lanes(pairs), from + row * call_.width + i));
      transpose(rows);
      for (int pair = 0; pair < pairs; ++pair) _mm512_storeu_ps(keys_ + (i / 2 + pair) * kVector, rows[pair]);
    }
    int64_t query = 0;
    for (; query + kAtOnce <= count_; query += kAtOnce) score_queries<kAtOnce>(query, at);
    for (; query + 3 <= count_; query += 3) score_queries<3>(query, at);
    for (; query < count_; ++query) score_queries<1>(query, at);
  }

  template <int Count>
  void score_queries(int64_t first, int64_t at) {
    const int64_t pairs = call_.width / 2;
    const int32_t* queries = queries_ + first * pairs;
    __m512 scores[Count];
    for (auto& score : scores) score = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const __m512i keys = _mm512_loadu_si512(keys_ + pair * kVector);
      for (int q = 0; q < Count; ++q)
        scores[q] = multiply_pairs(scores[q], keys, _mm512_set1_epi32(queries[q * pairs + pair]));
    }
    for (int q = 0; q < Count; ++q) _mm512_storeu_ps(scores_ + (first + q) * kStep + at, scores[q]);
  }

  // Scores become weights against the highest score so far; older sums shrink when it rises.
  void weigh(int64_t query, int64_t begin) {
    const int64_t position = call_.positions[tile_ * call_.lanes + query / call_.group()];
    const int64_t seen = position + 1 - begin, before = hidden(position) - begin;
    const float* from = scores_ + query * kStep;
    int32_t* weights = weights_ + query * kStep / 2;
    const __m512 masked = _mm512_set1_ps(kMasked);
    __m512 scores[kStep / kVector];
    __m512 highest = masked;
    __mmask16 kept[kStep / kVector];
    for (int i = 0; i < kStep / kVector; ++i) {
      kept[i] = lanes(seen - kVector * i) & static_cast<__mmask16>(~lanes(before - kVector * i));
      scores[i] = _mm512_mask_loadu_ps(masked, kept[i], from + kVector * i);
      highest = _mm512_max_ps(highest, scores[i]);
    }
    const float peak = std::max(peaks_[query], _mm512_reduce_max_ps(highest));
    if (peak != peaks_[query]) shrink(query, peak);
    __m512 mass = _mm512_loadu_ps(masses_ + query * kVector);
    for (int i = 0; i < kStep / kVector; ++i) {
      const __m512 weight = exp_negative(_mm512_sub_ps(scores[i], _mm512_set1_ps(peak)));
      const __m512 added = _mm512_maskz_mov_ps(kept[i], weight);
      store_bf16(weights + kVector / 2 * i, added);
      mass = _mm512_add_ps(mass, added);
    }
    _mm512_storeu_ps(masses_ + query * kVector, mass);
  }

  void shrink(int64_t query, float peak) {
    const __m512 factor = exp_negative(_mm512_set1_ps(peaks_[query] - peak));
    float* sums = sums_ + query * call_.width;
    for (int64_t i = 0; i < call_.width; i += kVector)
      _mm512_storeu_ps(sums + i, _mm512_mul_ps(_mm512_loadu_ps(sums + i), factor));
    float* masses = masses_ + query * kVector;
    _mm512_storeu_ps(masses, _mm512_mul_ps(_mm512_loadu_ps(masses), factor));
    peaks_[query] = peak;
  }

  // Adds the weighted values from position `at` to the end of its page; returns how many those were.
  int64_t gather(int64_t begin, int64_t at, int64_t left) {
    const int64_t count = std::min(left, call_.page_size - (begin + at) % call_.page_size);
    const uint16_t* values = cached(begin + at, 1);
    int64_t query = 0;
    for (; query + kAtOnce <= count_; query += kAtOnce) gather_queries<kAtOnce>(query, at, values, count);
    for (; query + 3 <= count_; query += 3) gather_queries<3>(query, at, values, count);
    for (; query < count_; ++query) gather_queries<1>(query, at, values, count);
    return count;
  }

  template <int Count>
  void gather_queries(int64_t first, int64_t at, const uint16_t* values, int64_t count) {
    int64_t part = 0;
    for (; part + 2 * kPairs <= call_.width; part += 2 * kPairs) gather_part<Count, 2>(first, at, values, count, part);
    for (; part < call_.width; part += kPairs) gather_part<Count, 1>(first, at, values, count, part);
  }

  // Two positions at a time; after an odd last one comes nothing.
  template <int Count, int Loads>
  void gather_part(int64_t first, int64_t at, const uint16_t* values, int64_t count, int64_t part) {
    const __mmask32 there = static_cast<__mmask32>((uint64_t{1} << std::min<int64_t>(kPairs, call_.width - part)) - 1);
    float* out = sums_ + first * call_.width + part;
    const int32_t* weights = weights_ + first * kStep / 2 + at / 2;
    __m512 sums[Count][2 * Loads];
    for (int q = 0; q < Count; ++q)
      for (int v = 0; v < 2 * Loads; ++v)
        sums[q][v] = _mm512_maskz_loadu_ps(half(there, v), out + q * call_.width + v * kVector);
    const __m512i low = pair_numbers(0), high = pair_numbers(kVector);
    for (int64_t position = 0; position < count; position += 2) {
      __m512i pairs[2 * Loads];
      for (int load = 0; load < Loads; ++load) {
        const uint16_t* from = values + position * call_.width + part + load * kPairs;
        const __m512i even = _mm512_maskz_loadu_epi16(there, from);
        const __m512i odd = _mm512_maskz_loadu_epi16(position + 1 < count ? there : 0, from + call_.width);
        pairs[2 * load] = _mm512_permutex2var_epi16(even, low, odd);
        pairs[2 * load + 1] = _mm512_permutex2var_epi16(even, high, odd);
      }
      for (int q = 0; q < Count; ++q) {
        const __m512i weight = _mm512_set1_epi32(weights[q * kStep / 2 + position / 2]);
        for (int v = 0; v < 2 * Loads; ++v) sums[q][v] = multiply_pairs(sums[q][v], pairs[v], weight);
      }
    }
    for (int q = 0; q < Count; ++q)
      for (int v = 0; v < 2 * Loads; ++v)
        _mm512_mask_storeu_ps(out + q * call_.width + v * kVector, half(there, v), sums[q][v]);
  }

  static __mmask16 half(__mmask32 there, int vector) { return static_cast<__mmask16>(there >> (vector % 2 * kVector)); }

  void store() {
    for (int64_t query = 0; query < count_; ++query) {
      float* to = row_of(call_.out, query);
      const float mass = _mm512_reduce_add_ps(_mm512_loadu_ps(masses_ + query * kVector));
      for (int64_t i = 0; i < call_.width; ++i) to[i] = sums_[query * call_.width + i] / mass;
    }
  }

  const Call& call_;
  const int64_t tile_, kv_head_;
  int64_t lanes_ = 0, count_ = 0;
  int64_t first_ = 0, last_ = 0;  // positions seen by some lane
  float *sums_, *scores_, *peaks_, *masses_;
  int32_t *weights_, *queries_, *keys_;  // pairs of bf16
};

// Padding tiles come last.
int64_t filled(const Call& call, int64_t tiles) {
  int64_t count = 0;
  while (count < tiles && call.positions[count * call.lanes] >= 0) ++count;
  return count;
}

ffi::Error attend(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> queries, ffi::Buffer<ffi::BF16> cache,
                  ffi::Buffer<ffi::S32> rows, ffi::Buffer<ffi::S32> positions, ffi::Buffer<ffi::S32> pages,
                  ffi::ResultBuffer<ffi::F32> out, float scale, int64_t window) {
  const auto asked = queries.dimensions();
  const auto kept = cache.dimensions();
  if (asked.size() != 3 || kept.size() != 5 || asked[2] != kept[4] || asked[2] % kVector || kept[3] % kVector ||
      asked[1] % kept[2]) {
    return ffi::Error::InvalidArgument("attend: heads must be multiples of 16 wide, pages multiples of 16 long");
  }
  if (window < 1) return ffi::Error::InvalidArgument("attend: a window must hold at least a row's own position");
  Call call{queries.typed_data(), reinterpret_cast<const uint16_t*>(cache.typed_data()), rows.typed_data(),
            positions.typed_data(), pages.typed_data(), out->typed_data()};
  call.heads = asked[1];
  call.kv_heads = kept[2];
  call.width = asked[2];
  call.page_size = kept[3];
  call.lanes = rows.dimensions()[1];
  call.slot_pages = pages.dimensions()[1];
  call.scale = scale;
  call.window = window;
  std::memset(call.out, 0, out->element_count() * sizeof(float));
  const int64_t items = filled(call, rows.dimensions()[0]) * call.kv_heads;
  parallel(pool, items, [&](int64_t item) { Item(call, item / call.kv_heads, item % call.kv_heads).run(); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(OutriderAttend, attend,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window"));

}  // namespace outrider
