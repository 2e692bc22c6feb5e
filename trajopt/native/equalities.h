// The rows of equality constraints e(q) = 0: closures (closures.h), then couplings y - y_0 = p(x - x_0) of sums of coordinates, p a
// polynomial of degree four; and what they say independently of each other.
//
// Rows that others imply are redundant only where the loops are closed exactly; the drift of a moving loop would make them contradict
// each other. What belongs to singular values of J below `INDEPENDENT`, its rows at length one, is left out, and so are rows that are
// shorter by this factor than the longest: P J and P e take the place of J and e, P the orthogonal projection, which the derivative
// takes as constant.
#pragma once
#include "closures.h"
#include "elimination.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double INDEPENDENT = 1e-4;
constexpr int JACOBI_SWEEPS = 30;  // quadratic convergence: a limit for what is not finite

template <class Size> struct Equalities {
  int count, ld;
  bool redundant;                      // P is not the identity
  ClosureAt* closure;
  double* curve;                       // of couplings: p''
  double *J, *error, *P;               // P J, rows of `lanes`; P e; P, rows of `ld`
  double *gram, *vectors, *rows, *acting;  // scratch: two like P, one like J, one like e
};

// Eigenvectors of a symmetric A (n, n) as the rows of V, eigenvalues on the diagonal that A keeps (cyclic Jacobi).
inline void eigenvectors(double* A, double* V, int n, int ld) {
  std::memset(V, 0, sizeof(double) * n * ld);
  double size = 0;
  for (int i = 0; i < n; ++i) V[i * ld + i] = 1, size = std::max(size, A[i * ld + i]);
  bool turned = true;
  for (int k = 0; turned && k < JACOBI_SWEEPS; ++k) {
    turned = false;
    for (int i = 0; i < n; ++i)
      for (int j = i + 1; j < n; ++j) {
        const double off = A[i * ld + j];
        if (!(std::fabs(off) > 0.1 * MACHINE * size)) continue;
        turned = true;
        const double ratio = (A[j * ld + j] - A[i * ld + i]) / (2 * off);
        const double tangent = std::copysign(1.0, ratio) / (std::fabs(ratio) + std::sqrt(ratio * ratio + 1));
        const double c = 1 / std::sqrt(tangent * tangent + 1), s = tangent * c;
        for (int a = 0; a < n; ++a) {
          const double x = A[a * ld + i], y = A[a * ld + j];
          A[a * ld + i] = c * x - s * y, A[a * ld + j] = s * x + c * y;
        }
        for (int a = 0; a < n; ++a) {
          const double x = A[i * ld + a], y = A[j * ld + a], v = V[i * ld + a], w = V[j * ld + a];
          A[i * ld + a] = c * x - s * y, A[j * ld + a] = s * x + c * y;
          V[i * ld + a] = c * v - s * w, V[j * ld + a] = s * v + c * w;
        }
        A[i * ld + j] = A[j * ld + i] = 0;
      }
  }
}

// P of the rows of e.J, and whether it is the identity.
template <class Size> void find_independent(Size n, Equalities<Size>& e) {
  const int N = n.lanes(), k = e.count, ld = e.ld;
  double* length = e.acting;
  auto inner = [&](int i, int j) {
    vec s = {};
    for (int b = 0; b < N; b += LANES) s += load(e.J + i * N + b) * load(e.J + j * N + b);
    return sum(s);
  };
  double longest = 0;
  for (int i = 0; i < k; ++i) length[i] = std::sqrt(inner(i, i)), longest = std::max(longest, length[i]);
  for (int i = 0; i < k; ++i)  // a row that moves next to nothing is not blown up to one that does
    if (!(length[i] > INDEPENDENT * longest)) length[i] = longest > 0 ? longest : 1;
  for (int i = 0; i < k; ++i)
    for (int j = 0; j <= i; ++j) e.gram[i * ld + j] = e.gram[j * ld + i] = inner(i, j) / (length[i] * length[j]);
  eigenvectors(e.gram, e.vectors, k, ld);
  double largest = 1;
  for (int i = 0; i < k; ++i) largest = std::max(largest, e.gram[i * ld + i]);
  int left = 0;  // z with z^T J = 0, to the front of `vectors`
  for (int i = 0; i < k; ++i) {
    if (!(e.gram[i * ld + i] < INDEPENDENT * INDEPENDENT * largest)) continue;
    for (int j = 0; j < k; ++j) e.vectors[left * ld + j] = e.vectors[i * ld + j] / length[j];
    ++left;
  }
  orthonormalise(e.vectors, ld, left, k);
  e.redundant = left > 0;
  std::memset(e.P, 0, sizeof(double) * k * ld);
  for (int i = 0; i < k; ++i) {
    e.P[i * ld + i] = 1;
    for (int z = 0; z < left; ++z) add(-e.vectors[z * ld + i], e.vectors + z * ld, e.P + i * ld, k);
  }
}

// out = P x for x (count, columns), rows of `columns`, which is a multiple of LANES; out is not x.
template <class Size> void keep_independent(const Equalities<Size>& e, const double* x, double* out, int columns) {
  product(e.count, columns, out, columns, nullptr, 0, {e.P, e.ld, 1}, x, columns, e.count, 1);
}

// P J, P e and P at a configuration.
template <class Size>
void equality_rows(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const double* q, Equalities<Size>& e) {
  const int N = n.lanes();
  double *J = e.rows, *error = e.acting;
  e.count = t.equalities(), e.ld = padded(e.count);
  if (e.count == 0) return;
  for (size_t c = 0; c < t.closures.size(); ++c) {
    const Closure& closure = t.closures[c];
    const ClosureAt& at = e.closure[c] = closure_at(p, kin, closure, static_cast<int>(c));
    each_row(closure, [&](int k, const double* x) {
      e.error[closure.first + k] = at.error[closure.rows[k]];
      closure_row(n, t, kin, closure, at, push_of(at, x), e.J + (closure.first + k) * N);
      if (t.projected()) project(t, p, e.J + (closure.first + k) * N);
    });
  }
  for (int k = 0; k < t.couplings; ++k) {
    const Coupling c(p, t, k);
    double *row = e.J + (t.first_coupling() + k) * N, y = -c.reference[0], x = -c.reference[1];
    for (int i = 0; i < t.nv; ++i)
      if (t.scalar_q[i] >= 0) y += c.y[i] * q[t.scalar_q[i]], x += c.x[i] * q[t.scalar_q[i]];
    double value = c.power[4], slope = 0, half_curve = 0;
    for (int i = 3; i >= 0; --i) half_curve = half_curve * x + slope, slope = slope * x + value, value = value * x + c.power[i];
    e.error[t.first_coupling() + k] = y - value, e.curve[k] = 2 * half_curve;
    std::memset(row, 0, sizeof(double) * N);
    for (int i = 0; i < t.nv; ++i) row[i] = c.y[i] - slope * c.x[i];
  }
  find_independent(n, e);
  if (!e.redundant) return;
  keep_independent(e, e.J, J, N);
  std::memcpy(e.J, J, sizeof(double) * e.count * N);
  for (int i = 0; i < e.count; ++i) {
    error[i] = 0;
    for (int j = 0; j < e.count; ++j) error[i] += e.P[i * e.ld + j] * e.error[j];
  }
  std::memcpy(e.error, error, sizeof(double) * e.count);
}

// Impulses of the rows of J from those of P J, in e.acting: P^T lambda.
template <class Size> const double* acting_impulses(const Equalities<Size>& e, const double* lambda) {
  for (int i = 0; i < e.count; ++i) {
    e.acting[i] = e.redundant ? 0 : lambda[i];
    for (int j = 0; e.redundant && j < e.count; ++j) e.acting[i] += e.P[i * e.ld + j] * lambda[j];
  }
  return e.acting;
}

// of(closure, its placement, impulses of its eight rows) for each closure under the impulses of the rows of J.
template <class Size, class Of> void each_closure(const Topology& t, const Equalities<Size>& e, const double* acting, Of of) {
  for (size_t c = 0; c < t.closures.size(); ++c) {
    const Closure& closure = t.closures[c];
    double x[CLOSURE_ROWS] = {};
    for (size_t k = 0; k < closure.rows.size(); ++k) x[closure.rows[k]] = acting[closure.first + k];
    of(closure, e.closure[c], x);
  }
}

// d(P J u)/dq at fixed u: rows `out` (of `stride`), user DoFs; u in user DoFs, V and V_parent the links' velocities.
template <class Size>
void equality_turning(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Equalities<Size>& e, const double* u,
                      Field<Size> V, Field<Size> V_parent, double* out, int stride) {
  const int N = n.lanes();
  for (size_t c = 0; c < t.closures.size(); ++c) {
    const Closure& closure = t.closures[c];
    each_row(closure, [&](int k, const double* x) {
      double* row = e.rows + (closure.first + k) * N;
      closure_turning(n, t, kin, closure, e.closure[c], x, V, V_parent, row);
      if (t.projected()) project(t, p, row);
    });
  }
  for (int k = 0; k < t.couplings; ++k) {
    const Coupling c(p, t, k);
    double *row = e.rows + (t.first_coupling() + k) * N, moved = 0;
    for (int i = 0; i < t.nv; ++i) moved += c.x[i] * u[i];
    std::memset(row, 0, sizeof(double) * N);
    for (int i = 0; i < t.nv; ++i) row[i] = -e.curve[k] * moved * c.x[i];
  }
  product(e.count, N, out, stride, nullptr, 0, {e.P, e.ld, 1}, e.rows, N, e.count, 1);
}

// X += what couplings add to d(J^T lambda)/dq, in user DoFs; acting: of the rows of J.
template <class Size>
void add_coupling_turning(Size n, const Topology& t, const Parameters& p, const Equalities<Size>& e, const double* acting, double* X) {
  const int N = n.lanes();
  for (int k = 0; k < t.couplings; ++k) {
    const Coupling c(p, t, k);
    const double bend = -acting[t.first_coupling() + k] * e.curve[k];
    for (int i = 0; i < t.nv; ++i)
      for (int j = 0; c.x[i] != 0 && j < t.nv; ++j) X[i * N + j] += bend * c.x[i] * c.x[j];
  }
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
