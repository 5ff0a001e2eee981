// Sixteen floats at a time: what several kernels need beyond the instructions themselves.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace outrider {

// e^x for x <= 0, exactly 1 at 0; below -87.3 it is as at -87.3. Polynomial of Cephes' expf.
inline __m512 exp_negative(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.3f));
  const __m512 power = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
  __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693359375f), x);
  rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), rest);
  __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
  for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
  sum = _mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(sum, power);
}

// Rounds to bf16, to the nearest; neighbours become pairs.
inline void store_bf16(int32_t* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

// Adds the products of two bf16 pairs to each sum.
inline __m512 multiply_pairs(__m512 sums, __m512i left, __m512i right) {
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
}

// Which of two vectors' 16-bit values to take for pairs (a0, b0), (a1, b1) ... and for those from 16 on.
inline __m512i pair_numbers(int first) {
  alignas(64) int16_t numbers[32];
  for (int i = 0; i < 16; ++i) {
    numbers[2 * i] = static_cast<int16_t>(first + i);
    numbers[2 * i + 1] = static_cast<int16_t>(32 + first + i);
  }
  return _mm512_load_si512(numbers);
}

// Rows become columns: four rounds of interleaving, by 1, 2, 4 and 8.
inline void transpose(__m512 (&rows)[16]) {
  __m512 t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    rows[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    rows[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    rows[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    rows[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    rows[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    rows[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

}  // namespace outrider
