// Spatial algebra in world axes, vectors ordered [linear; angular], the same code for numbers and for vectors of lanes.
// Notation of trajopt/dynamics/rigid_body/spatial.py: motion [l; w], force [p; n], packed inertia about the tree's origin.
#pragma once
#include "vector.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <class T> struct V3 { T x, y, z; };
template <class T> TRAJOPT_INLINE V3<T> operator+(V3<T> a, V3<T> b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
template <class T> TRAJOPT_INLINE V3<T> operator-(V3<T> a, V3<T> b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
template <class T, class K> TRAJOPT_INLINE V3<T> operator*(K k, V3<T> a) { return {k * a.x, k * a.y, k * a.z}; }
template <class T> TRAJOPT_INLINE V3<T> cross(V3<T> a, V3<T> b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
template <class T> TRAJOPT_INLINE T dot(V3<T> a, V3<T> b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
TRAJOPT_INLINE V3<vec> splat(V3<double> a) { return {splat(a.x), splat(a.y), splat(a.z)}; }

template <class T> struct V6 { V3<T> l, w; };
template <class T> TRAJOPT_INLINE V6<T> operator+(V6<T> a, V6<T> b) { return {a.l + b.l, a.w + b.w}; }
template <class T> TRAJOPT_INLINE V6<T> operator-(V6<T> a, V6<T> b) { return {a.l - b.l, a.w - b.w}; }
template <class T, class K> TRAJOPT_INLINE V6<T> operator*(K k, V6<T> a) { return {k * a.l, k * a.w}; }
template <class T> TRAJOPT_INLINE T dot(V6<T> a, V6<T> b) { return dot(a.l, b.l) + dot(a.w, b.w); }
TRAJOPT_INLINE V6<vec> splat(V6<double> a) { return {splat(a.l), splat(a.w)}; }

// v x m (RBDA 2.31) and v x* f (RBDA 2.32).
template <class T> TRAJOPT_INLINE V6<T> cross_motion(V6<T> v, V6<T> m) {
  return {cross(v.w, m.l) + cross(v.l, m.w), cross(v.w, m.w)};
}
template <class T> TRAJOPT_INLINE V6<T> cross_force(V6<T> v, V6<T> f) {
  return {cross(v.w, f.l), cross(v.w, f.w) + cross(v.l, f.l)};
}

// Row-major rotation matrix.
template <class T> struct M3 { V3<T> row0, row1, row2; };
template <class T> TRAJOPT_INLINE V3<T> operator*(const M3<T>& R, V3<T> a) {
  return {dot(R.row0, a), dot(R.row1, a), dot(R.row2, a)};
}
template <class T> TRAJOPT_INLINE V3<T> transposed_times(const M3<T>& R, V3<T> a) {
  return a.x * R.row0 + a.y * R.row1 + a.z * R.row2;
}
template <class T> TRAJOPT_INLINE M3<T> operator*(const M3<T>& A, const M3<T>& B) {
  return {transposed_times(B, A.row0), transposed_times(B, A.row1), transposed_times(B, A.row2)};
}
TRAJOPT_INLINE M3<vec> splat(const M3<double>& R) { return {splat(R.row0), splat(R.row1), splat(R.row2)}; }
template <class T> TRAJOPT_INLINE M3<T> transposed(const M3<T>& A) {
  return {{A.row0.x, A.row1.x, A.row2.x}, {A.row0.y, A.row1.y, A.row2.y}, {A.row0.z, A.row1.z, A.row2.z}};
}

// Spatial inertia about the origin: mass, first moment h = m c, moments of inertia.
template <class T> struct Inertia {
  T m;
  V3<T> h;
  T xx, xy, yy, xz, yz, zz;
  TRAJOPT_INLINE V6<T> operator*(V6<T> v) const {  // [m l + w x h; h x l + J w]
    const V3<T> spin = {xx * v.w.x + xy * v.w.y + xz * v.w.z, xy * v.w.x + yy * v.w.y + yz * v.w.z,
                        xz * v.w.x + yz * v.w.y + zz * v.w.z};
    return {m * v.l + cross(v.w, h), cross(h, v.l) + spin};
  }
};

// IDSVA's B = [0, -[p]x; 0, K] of a body (trajopt/dynamics/rigid_body/derivatives.py), k row by row.
template <class T> struct Coriolis {
  V3<T> p;
  M3<T> k;
  TRAJOPT_INLINE V6<T> operator*(V6<T> m) const { return {cross(m.w, p), k * m.w}; }
  TRAJOPT_INLINE V3<T> transposed_angular(V6<T> m) const { return cross(p, m.l) + transposed_times(k, m.w); }
};
template <class T> TRAJOPT_INLINE Coriolis<T> coriolis(const Inertia<T>& I, V6<T> v) {
  const T half = 0.5 * (I.xx + I.yy + I.zz);
  const V3<T> h = I.h, l = v.l;
  const V3<T> a = cross(v.w, V3<T>{I.xx - half, I.xy, I.xz}), b = cross(v.w, V3<T>{I.xy, I.yy - half, I.yz}),
              c = cross(v.w, V3<T>{I.xz, I.yz, I.zz - half});
  return {I.m * l + cross(v.w, h),
          {{a.x + (h.y * l.y + h.z * l.z), b.x - l.x * h.y, c.x - l.x * h.z},
           {a.y - l.y * h.x, b.y + (h.x * l.x + h.z * l.z), c.y - l.y * h.z},
           {a.z - l.z * h.x, b.z - l.z * h.y, c.z + (h.x * l.x + h.y * l.y)}}};
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
