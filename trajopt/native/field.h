// Sizes known to the compiler or at run time only, and arrays of spatial quantities by component: one lane a DoF.
#pragma once
#include "spatial.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

template <int MOST> struct Fixed {  // number of lanes, a multiple of PADDING
  static constexpr int lanes() { return MOST; }
};
struct Open {
  int count;
  int lanes() const { return count; }
};

// Components x (lanes + PADDING): lane number `lanes()` stands for the world, into which recursions may write.
template <class Size> struct Field {
  double* at = nullptr;
  [[no_unique_address]] Size size{};

  TRAJOPT_INLINE int stride() const { return size.lanes() + PADDING; }
  TRAJOPT_INLINE double* operator[](int component) const { return at + component * stride(); }
  TRAJOPT_INLINE V3<vec> three(int lane, int from = 0) const {
    return {load((*this)[from] + lane), load((*this)[from + 1] + lane), load((*this)[from + 2] + lane)};
  }
  TRAJOPT_INLINE V6<vec> six(int lane) const { return {three(lane), three(lane, 3)}; }
  TRAJOPT_INLINE M3<vec> matrix(int lane) const { return {three(lane), three(lane, 3), three(lane, 6)}; }
  TRAJOPT_INLINE void put(int lane, V3<vec> x, int from = 0) const {
    store((*this)[from] + lane, x.x);
    store((*this)[from + 1] + lane, x.y);
    store((*this)[from + 2] + lane, x.z);
  }
  TRAJOPT_INLINE void put(int lane, V6<vec> x) const { put(lane, x.l), put(lane, x.w, 3); }
  TRAJOPT_INLINE V3<double> three_of(int j, int from = 0) const {
    return {(*this)[from][j], (*this)[from + 1][j], (*this)[from + 2][j]};
  }
  TRAJOPT_INLINE V6<double> six_of(int j) const { return {three_of(j), three_of(j, 3)}; }
  TRAJOPT_INLINE M3<double> matrix_of(int j) const { return {three_of(j), three_of(j, 3), three_of(j, 6)}; }
  TRAJOPT_INLINE void set(int j, V3<double> x, int from = 0) const {
    (*this)[from][j] = x.x, (*this)[from + 1][j] = x.y, (*this)[from + 2][j] = x.z;
  }
  TRAJOPT_INLINE void set(int j, V6<double> x) const { set(j, x.l), set(j, x.w, 3); }
  TRAJOPT_INLINE void set(int j, const M3<double>& x) const { set(j, x.row0), set(j, x.row1, 3), set(j, x.row2, 6); }

  TRAJOPT_INLINE Inertia<vec> inertia(int lane) const {
    auto of = [&](int k) { return load((*this)[k] + lane); };
    return {of(0), {of(1), of(2), of(3)}, of(4), of(5), of(6), of(7), of(8), of(9)};
  }
  TRAJOPT_INLINE void put(int lane, const Inertia<vec>& x) const {
    const vec parts[10] = {x.m, x.h.x, x.h.y, x.h.z, x.xx, x.xy, x.yy, x.xz, x.yz, x.zz};
    for (int k = 0; k < 10; ++k) store((*this)[k] + lane, parts[k]);
  }
};

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
