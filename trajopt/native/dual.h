// Numbers that carry their derivative by the motion of one body: six directions, translations and turns about its shape's origin.
//
// The functions of shape_pairs.h are written once, for numbers and for these: what decides compares values alone, what is decided
// is computed with its slope.
#pragma once
#include <cmath>

#include "spatial.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int DIRECTIONS = 6;

struct Dual {
  double v, d[DIRECTIONS];
  Dual() = default;
  Dual(double x) : v(x), d{} {}
};

TRAJOPT_INLINE double value(double x) { return x; }
TRAJOPT_INLINE double value(const Dual& x) { return x.v; }
template <class T> TRAJOPT_INLINE V3<double> value(const V3<T>& a) { return {value(a.x), value(a.y), value(a.z)}; }

// f(a, b) from its value and its derivatives by a and b.
TRAJOPT_INLINE Dual chain(double value, double by_a, const Dual& a, double by_b, const Dual& b) {
  Dual out;
  out.v = value;
  for (int k = 0; k < DIRECTIONS; ++k) out.d[k] = by_a * a.d[k] + by_b * b.d[k];
  return out;
}
TRAJOPT_INLINE Dual chain(double value, double by_a, const Dual& a) {
  Dual out;
  out.v = value;
  for (int k = 0; k < DIRECTIONS; ++k) out.d[k] = by_a * a.d[k];
  return out;
}

TRAJOPT_INLINE Dual operator+(const Dual& a, const Dual& b) { return chain(a.v + b.v, 1, a, 1, b); }
TRAJOPT_INLINE Dual operator-(const Dual& a, const Dual& b) { return chain(a.v - b.v, 1, a, -1, b); }
TRAJOPT_INLINE Dual operator*(const Dual& a, const Dual& b) { return chain(a.v * b.v, b.v, a, a.v, b); }
TRAJOPT_INLINE Dual operator/(const Dual& a, const Dual& b) { return chain(a.v / b.v, 1 / b.v, a, -a.v / (b.v * b.v), b); }
TRAJOPT_INLINE Dual operator-(const Dual& a) { return chain(-a.v, -1, a); }

TRAJOPT_INLINE double root(double x) { return std::sqrt(x); }
TRAJOPT_INLINE Dual root(const Dual& x) { const double r = std::sqrt(x.v); return chain(r, 0.5 / r, x); }
TRAJOPT_INLINE double magnitude(double x) { return std::fabs(x); }
TRAJOPT_INLINE Dual magnitude(const Dual& x) { return chain(std::fabs(x.v), x.v > 0 ? 1 : x.v < 0 ? -1 : 0, x); }
TRAJOPT_INLINE double sine(double x) { return std::sin(x); }
TRAJOPT_INLINE Dual sine(const Dual& x) { return chain(std::sin(x.v), std::cos(x.v), x); }
TRAJOPT_INLINE double cosine(double x) { return std::cos(x); }
TRAJOPT_INLINE Dual cosine(const Dual& x) { return chain(std::cos(x.v), -std::sin(x.v), x); }
// x limited to [low, high].
template <class T> TRAJOPT_INLINE T limited(const T& x, double low, double high) {
  return value(x) < low ? T(low) : value(x) > high ? T(high) : x;
}

template <class T> TRAJOPT_INLINE V3<T> lifted(V3<double> a) { return {T(a.x), T(a.y), T(a.z)}; }
template <class T> TRAJOPT_INLINE M3<T> lifted(const M3<double>& R) { return {lifted<T>(R.row0), lifted<T>(R.row1), lifted<T>(R.row2)}; }
template <class T> TRAJOPT_INLINE V3<T> constant(double x, double y, double z) { return {T(x), T(y), T(z)}; }
template <class T> TRAJOPT_INLINE V3<T> operator-(const V3<T>& a) { return {-a.x, -a.y, -a.z}; }
template <class T> TRAJOPT_INLINE const T& part(const V3<T>& a, int k) { return k == 0 ? a.x : k == 1 ? a.y : a.z; }
template <class T> TRAJOPT_INLINE T& part(V3<T>& a, int k) { return k == 0 ? a.x : k == 1 ? a.y : a.z; }

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
