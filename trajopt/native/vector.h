// Vectors of LANES doubles: 8 with AVX-512, 4 with AVX2, so that the object for AVX2 holds no 512-bit register.
#pragma once
#include <cmath>
#include <cstddef>

#define TRAJOPT_INLINE inline __attribute__((always_inline))

// The inline namespace is named after the instruction set: two objects in one process share no inline function.
#if defined(__AVX512F__)
#define TRAJOPT_ISA avx512
#define TRAJOPT_LANES 8
#else
#define TRAJOPT_ISA avx2
#define TRAJOPT_LANES 4
#endif

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int LANES = TRAJOPT_LANES;
constexpr int PADDING = 8;  // arrays of lanes are padded to this for every instruction set: one packing serves all

using vec = double __attribute__((vector_size(LANES * sizeof(double))));
using ivec = long long __attribute__((vector_size(LANES * sizeof(double))));
using unaligned_vec = double __attribute__((vector_size(LANES * sizeof(double)), aligned(8)));

TRAJOPT_INLINE vec load(const double* p) { return *reinterpret_cast<const vec*>(p); }
TRAJOPT_INLINE vec loadu(const double* p) { return *reinterpret_cast<const unaligned_vec*>(p); }
TRAJOPT_INLINE void store(double* p, vec x) { *reinterpret_cast<vec*>(p) = x; }
TRAJOPT_INLINE void storeu(double* p, vec x) { *reinterpret_cast<unaligned_vec*>(p) = x; }
TRAJOPT_INLINE vec splat(double x) { return vec{} + x; }

TRAJOPT_INLINE double sum(vec x) {
#if TRAJOPT_LANES == 8
  return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

inline bool all_finite(const double* x, long long count) {
  vec zero = {};  // x - x of all x
  long long k = 0;
  for (; k + LANES <= count; k += LANES) {
    const vec here = loadu(x + k);
    zero += here - here;
  }
  double rest = sum(zero);
  for (; k < count; ++k) rest += x[k] - x[k];
  return rest == 0;
}

constexpr int padded(int n) { return (n + PADDING - 1) / PADDING * PADDING; }

// f(first block, std::integral_constant count) over the blocks [from, to), at most MOST of them at once: accumulators stay
// in registers and the chains of dependent additions overlap.
template <int N> struct Count { static constexpr int value = N; };
template <int MOST, class F> TRAJOPT_INLINE void tiles(int from, int to, F&& f) {
  for (; to - from >= MOST; from += MOST) f(from, Count<MOST>{});
  if constexpr (MOST > 1) {
    if (from < to) tiles<MOST - 1>(from, to, f);
  }
}

// Sine and cosine: reduction of Cody and Waite in three parts, polynomials of Cephes on [-pi/4, pi/4]; exact to 2 units in the
// last place for |x| < 1e5. Larger arguments go through the library.
TRAJOPT_INLINE void sine_cosine(vec x, vec& s, vec& c) {
  for (int k = 0; k < LANES; ++k)
    if (__builtin_expect(std::fabs(x[k]) > 1e5, 0)) {
      for (int i = 0; i < LANES; ++i) { s[i] = std::sin(x[i]); c[i] = std::cos(x[i]); }
      return;
    }
  const vec magic = splat(6755399441055744.0);  // 1.5 * 2^52: adding it leaves the nearest integer in the low bits
  const vec shifted = x * 0.63661977236758134308 + magic;
  const vec n = shifted - magic;
  const ivec quadrant = reinterpret_cast<ivec>(shifted);
  const vec r = x - n * 1.57079625129699707031e0 - n * 7.54978941586159635336e-8 - n * 5.39030285815811905290e-15;
  const vec z = r * r;
  vec p = 1.58962301576546568060e-10 * z - 2.50507477628578072866e-8;
  p = (p * z + 2.75573136213857245213e-6) * z - 1.98412698295895385996e-4;
  p = (p * z + 8.33333333332211858878e-3) * z - 1.66666666666666307295e-1;
  const vec sine = r + r * z * p;
  vec k = -1.13585365213876817300e-11 * z + 2.08757008419747316778e-9;
  k = (k * z - 2.75573141792967388112e-7) * z + 2.48015872888517045348e-5;
  k = (k * z - 1.38888888888730564116e-3) * z + 4.16666666666665929218e-2;
  const vec cosine = 1.0 - 0.5 * z + z * z * k;
  const ivec odd = (quadrant & 1) != 0;
  s = odd ? cosine : sine;
  c = odd ? sine : cosine;
  s = (quadrant & 2) != 0 ? -s : s;
  c = ((quadrant + 1) & 2) != 0 ? -c : c;
}

// The transpose of a square block of LANES x LANES.
TRAJOPT_INLINE void transpose(const double* from, ptrdiff_t ld_from, double* to, ptrdiff_t ld_to) {
#if TRAJOPT_LANES == 8
  vec r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = load(from + i * ld_from);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = __builtin_shuffle(r[2 * i], r[2 * i + 1], ivec{0, 8, 2, 10, 4, 12, 6, 14});
    t[2 * i + 1] = __builtin_shuffle(r[2 * i], r[2 * i + 1], ivec{1, 9, 3, 11, 5, 13, 7, 15});
  }
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h)
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      r[4 * h + i] = __builtin_shuffle(t[4 * h + i], t[4 * h + 2 + i], ivec{0, 1, 8, 9, 4, 5, 12, 13});
      r[4 * h + 2 + i] = __builtin_shuffle(t[4 * h + i], t[4 * h + 2 + i], ivec{2, 3, 10, 11, 6, 7, 14, 15});
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    store(to + i * ld_to, __builtin_shuffle(r[i], r[4 + i], ivec{0, 1, 2, 3, 8, 9, 10, 11}));
    store(to + (4 + i) * ld_to, __builtin_shuffle(r[i], r[4 + i], ivec{4, 5, 6, 7, 12, 13, 14, 15}));
  }
#else
  vec r[4], t[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r[i] = load(from + i * ld_from);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    t[2 * i] = __builtin_shuffle(r[2 * i], r[2 * i + 1], ivec{0, 4, 2, 6});
    t[2 * i + 1] = __builtin_shuffle(r[2 * i], r[2 * i + 1], ivec{1, 5, 3, 7});
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    store(to + i * ld_to, __builtin_shuffle(t[i], t[2 + i], ivec{0, 1, 4, 5}));
    store(to + (2 + i) * ld_to, __builtin_shuffle(t[i], t[2 + i], ivec{2, 3, 6, 7}));
  }
#endif
}

// C[i][:] = C0[i][:] + sign sum_k A(i, k) B[k][:] over `rows` rows and all `columns` (a multiple of LANES); C0 may be null.
// A(i, k) = A[i * row + k * column]. C may be C0, and must not overlap A or B.
struct Strided { const double* at; ptrdiff_t row, column; };
template <int R, int T>
TRAJOPT_INLINE void product_tile(double* C, ptrdiff_t ldc, const double* C0, ptrdiff_t ldc0, Strided A, const double* B,
                                 ptrdiff_t ldb, int inner, double sign) {
  vec acc[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int b = 0; b < T; ++b) acc[r][b] = vec{};
  for (int k = 0; k < inner; ++k) {
    vec row[T];
#pragma GCC unroll 4
    for (int b = 0; b < T; ++b) row[b] = load(B + k * ldb + LANES * b);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vec a = splat(A.at[r * A.row + k * A.column]);
#pragma GCC unroll 4
      for (int b = 0; b < T; ++b) acc[r][b] += a * row[b];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int b = 0; b < T; ++b) {
      const vec x = sign * acc[r][b];
      store(C + r * ldc + LANES * b, C0 ? load(C0 + r * ldc0 + LANES * b) + x : x);
    }
}
inline void product(int rows, int columns, double* C, ptrdiff_t ldc, const double* C0, ptrdiff_t ldc0, Strided A,
                    const double* B, ptrdiff_t ldb, int inner, double sign) {
  constexpr int R = LANES == 8 ? 6 : 4, T = 3;  // accumulators, a row of B and one entry of A fill the registers
  tiles<T>(0, columns / LANES, [&](int block, auto count) {
    constexpr int t = decltype(count)::value;
    const int at = block * LANES;
    int i = 0;
    for (; i + R <= rows; i += R)
      product_tile<R, t>(C + i * ldc + at, ldc, C0 ? C0 + i * ldc0 + at : nullptr, ldc0,
                         {A.at + i * A.row, A.row, A.column}, B + at, ldb, inner, sign);
    for (; i < rows; ++i)
      product_tile<1, t>(C + i * ldc + at, ldc, C0 ? C0 + i * ldc0 + at : nullptr, ldc0,
                         {A.at + i * A.row, A.row, A.column}, B + at, ldb, inner, sign);
  });
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
