// Vectors as wide as the machine's, written with the compiler's generic vectors; intrinsics only where these do not suffice.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if !defined(WIDTH)  // with another width than the processor's, the compiler uses several of its vectors, or parts
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#endif
constexpr int W = WIDTH;  // lanes of 32 bits

typedef float floats __attribute__((vector_size(4 * W)));
typedef int32_t ints __attribute__((vector_size(4 * W)));
typedef uint32_t words __attribute__((vector_size(4 * W)));
typedef uint16_t bfloat16;
typedef uint16_t half;
struct float16 {  // a type of its own, since `half` and `bfloat16` are one type for overloads
    half bits;
};

static inline floats splat(float x) { return x - floats{}; }  // scalars broadcast; subtracting zeros keeps -0.0
static inline ints splat(int32_t x) { return x - ints{}; }

static inline floats load(const float* p) {
    floats v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline floats load(const bfloat16* p) {
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif WIDTH == 8 && defined(__AVX2__)
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    words v;
    for (int i = 0; i < W; i++) v[i] = (uint32_t)p[i] << 16;
    return (floats)v;
#endif
}

static inline float to_float(float x) { return x; }

static inline float to_float(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static inline bfloat16 to_bfloat16(float x) {  // round to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;  // the carry of the rounding could turn a NaN into a number
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline float half_to_float(half x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
    float y;
    if (magnitude < 0x400) {  // zero and subnormal numbers
        y = magnitude * 5.9604644775390625e-8f;
        return sign ? -y : y;
    }
    // The exponent's bias goes from 15 to 127; the exponent of infinities and NaN from 31 to 255.
    uint32_t bits = sign | ((magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000u : 0x38000000u));
    memcpy(&y, &bits, 4);
    return y;
}

static inline floats load_half(const half* p) {
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif WIDTH == 8 && defined(__AVX2__) && defined(__F16C__)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    floats v;
    for (int i = 0; i < W; i++) v[i] = half_to_float(p[i]);
    return v;
#endif
}

static inline floats load(const float16* p) { return load_half((const half*)p); }
static inline float to_float(float16 x) { return half_to_float(x.bits); }

static inline floats load(const int8_t* p) {
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif WIDTH == 8 && defined(__AVX2__)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    floats v;
    for (int i = 0; i < W; i++) v[i] = p[i];
    return v;
#endif
}

static inline half to_half(float x) {  // round to nearest, ties to even; 65520 and more become infinite
    uint32_t bits, magnitude;
    memcpy(&bits, &x, 4);
    const half sign = bits >> 16 & 0x8000;
    magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x477ff000) return sign | (x != x ? 0x7e00 : 0x7c00);
    if (magnitude >= 0x38800000) return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const float shifted = std::fabs(x) + 0.5f;  // subnormal in half: the low bits of 0.5 + |x| count multiples of 2^-24
    memcpy(&bits, &shifted, 4);
    return sign | (bits - 0x3f000000);
}

// Load n < W numbers; the other lanes are 0.
template <class T> static inline floats load_part(const T* p, long n) {
    T lanes[W] = {};
    memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}

// Keep a loaded vector in its register: compilers would load it again for each use, which is slower.
static inline floats in_register(floats v) {
#if WIDTH == 16 && defined(__AVX512F__)
    asm("" : "+v"(v));
#elif WIDTH == 8 && defined(__AVX2__)
    asm("" : "+x"(v));
#endif
    return v;
}

static inline void store(float* p, floats v) { memcpy(p, &v, sizeof v); }

static inline void store(bfloat16* p, floats v) {  // to_bfloat16 of each lane
    typedef uint16_t halves __attribute__((vector_size(2 * W)));
    const words bits = (words)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const ints is_number = v == v;
    const halves y = __builtin_convertvector((words)((is_number & (ints)rounded) | (~is_number & 0x7fc0)), halves);
    memcpy(p, &y, sizeof y);
}

static inline void store(float16* p, floats v) {  // to_half of each lane
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif WIDTH == 8 && defined(__AVX2__) && defined(__F16C__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < W; i++) p[i].bits = to_half(v[i]);
#endif
}

// a b + c, rounded once if the processor can. Left to the compiler, a * b + c would be rounded once in some places and twice in others, and
// the same row would get different bits.
static inline floats multiply_add(floats a, floats b, floats c) {
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif WIDTH == 8 && defined(__AVX2__) && defined(__FMA__)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif WIDTH == 4 && defined(__ARM_NEON)
    return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline float sum(floats v) {  // add the upper half to the lower half, and so on
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_reduce_add_ps((__m512)v);
#elif WIDTH == 8 && defined(__AVX2__)
    __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
#else
    for (int n = W / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) v[i] += v[i + n];
    return v[0];
#endif
}

// sum() of four vectors at once, added in the same order.
static inline void sum_four(floats a, floats b, floats c, floats d, float* y) {
#if (WIDTH == 8 && defined(__AVX2__)) || (WIDTH == 16 && defined(__AVX512DQ__) && defined(__AVX512BW__))
#if WIDTH == 16
    auto half = [](floats v) { return _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1)); };
#else
    auto half = [](floats v) { return (__m256)v; };
#endif
    auto quarter = [&](floats v) { return _mm_add_ps(_mm256_castps256_ps128(half(v)), _mm256_extractf128_ps(half(v), 1)); };
    __m128 q[4] = {quarter(a), quarter(b), quarter(c), quarter(d)};
    __m128 first = _mm_add_ps(_mm_movelh_ps(q[0], q[1]), _mm_movehl_ps(q[1], q[0]));
    __m128 second = _mm_add_ps(_mm_movelh_ps(q[2], q[3]), _mm_movehl_ps(q[3], q[2]));
    _mm_storeu_ps(y, _mm_add_ps(_mm_shuffle_ps(first, second, 0x88), _mm_shuffle_ps(first, second, 0xdd)));
#else
    y[0] = sum(a), y[1] = sum(b), y[2] = sum(c), y[3] = sum(d);
#endif
}

// sum() of W vectors: lane i is sum(x[i]).
static inline floats sums_of(const floats (&x)[W]) {
#if WIDTH == 16 && defined(__AVX512F__)
    __m512 quarters[4];  // 128-bit part j of quarters[i]: four partial sums of x[4 j + i]
    for (int i = 0; i < 4; i++) {
        const __m512 a = (__m512)x[i], b = (__m512)x[4 + i], c = (__m512)x[8 + i], d = (__m512)x[12 + i];
        const __m512 left = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const __m512 right = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd));
    }
    auto pairs = [](__m512 a, __m512 b) {  // two partial sums of each vector
        const __m512d p = _mm512_castps_pd(a), q = _mm512_castps_pd(b);
        return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    };
    const __m512 first = pairs(quarters[0], quarters[1]), second = pairs(quarters[2], quarters[3]);
    return (floats)_mm512_add_ps(_mm512_shuffle_ps(first, second, 0x88), _mm512_shuffle_ps(first, second, 0xdd));
#else
    float y[W];
    for (int i = 0; i < W; i += 4) sum_four(x[i], x[i + 1], x[i + 2], x[i + 3], y + i);
    return load(y);
#endif
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && WIDTH == 16
// Transpose 16 x 16 words: y[column][row] = x[row][column]. Rows of x are `bytes` bytes apart.
static inline void transpose_words(const void* x, long bytes, __m512i y[W]) {
    __m512i a[W], b[W];
    for (int i = 0; i < W; i++) a[i] = _mm512_loadu_si512((const char*)x + i * bytes);
    for (int i = 0; i < W; i += 2) b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    for (int i = 0; i < W; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + 2 + j]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {  // 128-bit part l of a[4 g + i]: column 4 l + i of rows 4 g to 4 g + 3
        const __m512i even[2] = {_mm512_shuffle_i32x4(a[i], a[4 + i], 0x88), _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88)};
        const __m512i odd[2] = {_mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd), _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd)};
        y[i] = _mm512_shuffle_i32x4(even[0], even[1], 0x88), y[8 + i] = _mm512_shuffle_i32x4(even[0], even[1], 0xdd);
        y[4 + i] = _mm512_shuffle_i32x4(odd[0], odd[1], 0x88), y[12 + i] = _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd);
    }
}

#if defined(__AVX512BF16__)
// Store two vectors, rounded, as 32 consecutive numbers.
static inline void store_both(floats first, floats second, bfloat16* y) {
    const __m512bh row = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    memcpy(y, &row, sizeof row);
}
#endif
#endif

// sum[lane] + low(a) low(b) + high(a) high(b), where low and high are the signed 16-bit halves of a lane.
static inline ints multiply_pairs(ints sum, ints a, ints b) {
#if WIDTH == 16 && defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return (ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return sum + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif WIDTH == 8 && defined(__AVXVNNI__)
    return (ints)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif WIDTH == 8 && defined(__AVX2__)
    return sum + (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif WIDTH == 4 && defined(__SSE2__)
    return sum + (ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);  // the shifts extend the sign
#endif
}

static inline bool any(ints mask) {
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif WIDTH == 8 && defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    int32_t bits = 0;
    for (int i = 0; i < W; i++) bits |= mask[i];
    return bits != 0;
#endif
}

static inline floats choose(ints mask, floats yes, floats no) { return (floats)((mask & (ints)yes) | (~mask & (ints)no)); }

static inline floats exp(floats x) {  // 2^n (1 + r + r^2/2 + ...), |r| <= ln(2) / 2; relative error below 2e-7
    // Below `low` the result is 0, above `high` infinite. Adding 1.5 * 2^23 rounds to an integer, in the low bits of the float.
    const floats low = splat(-104.0f), high = splat(88.72283f), rounding = splat(12582912.0f);
    floats z = choose(x < low, low, choose(x > high, high, x));
    floats shifted = z * 1.44269504f + rounding, n = shifted - rounding;
    floats r = z - n * 0.693359375f + n * 2.12194440e-4f;  // ln(2) in two parts, of which n times the first is exact
    floats p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // 0x4b400000 are the bits of 1.5 * 2^23. 2^n is multiplied as two factors, since 2^128 alone would overflow.
    ints exponent = (ints)shifted - 0x4b400000, first = exponent >> 1, second = exponent - first;
    floats y = p * (floats)((first + 127) << 23) * (floats)((second + 127) << 23);
    return choose(x > high, splat(INFINITY), choose(x != x, x, y));
}

static inline floats sigmoid(floats x) { return 1.0f / (1.0f + exp(-x)); }

static inline floats tanh(floats x) {  // near 0 by its series, since 1 - 2 / (1 + e^2x) would lose digits there
    floats square = x * x;
    floats small = x * (1.0f + square * (-0.33333333f + square * (0.13333333f + square * (-0.053968254f + square * 0.021869489f))));
    floats large = 1.0f - 2.0f / (1.0f + exp(2.0f * x));
    return choose(square < splat(0.0625f), small, large);
}
