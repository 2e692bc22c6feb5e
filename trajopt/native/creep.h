// Newton's iteration for contacts that creep: they slide, by less than the natural map resolves.
//
// Contacts that hold each other's bodies (two points of one foot, feet of one robot) are redundant, and their offsets, depths of
// 1e-13 m over dt, agree to rounding only. Where all of them stick the equations then contradict each other; what solves the law are
// friction forces that press against each other until one contact reaches its cone and gives way, by 1e-12 to 1e-7 m/s. In
// y_t = lambda_t - rho nu_t such a slip is lost beside the impulse, and Newton's iteration on the natural map does not see which
// contact it is. Here a sliding contact has unknowns of its own,
//
//     lambda_t = mu lambda_n u,   nu_t = -s u,   nu_n = 0,   |u| = 1,
//
// the angle of u, the speed s and lambda_n, in place of three impulses; signs of s, of lambda_n and of what sticks, opens or is held
// revise the modes, and where none does and the equations still contradict each other, the stress between the contacts: the first mode
// that ends along it (an active-set method, Nocedal and Wright, section 16.5, with the cone's equation in place of a bound).
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "selection.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr int CREEP_ROUNDS = 24, CREEP_ITERATIONS = 30;  // revisions of the modes, Newton's steps in each
constexpr double CREEP_TURN = 0.7, CREEP_FALL = 0.9;     // radians and share of lambda_n that a step may change
constexpr int TOGETHER = 6;                              // rounds that revise all modes at once; later ones the worst alone
constexpr double VANISHED = 1e-9;                        // share of the largest impulse below which a sliding contact has none
constexpr double CREEP_SLACK = 1e-12;                    // share of its cone by which a sticking contact may pass it
constexpr double STRESS = 1e-6;                          // regularisation whose step shows the stress, as a share of 1 / rho
constexpr double REACH[] = {1.001, 2.0, 5.0, 20.0};      // times the way to the first mode that ends: which end together, in turn

struct CreepScratch {
  double *direction, *slip;  // u at 3 c and 3 c + 1; s of contact c, m/s
  Point at;
  int* mode;
  double* basis;  // of `in_modes.h`
  int* place;
};

inline bool slides(const Ncp& ncp, const CreepScratch& s, int row) {
  return row < 3 * ncp.problem.contacts && s.mode[row / 3] == SLIDING;
}

// Turns a direction of the tangent plane by an angle, to first order, and keeps its length of one.
inline void turn_direction(double* u, double angle) {
  const double u0 = u[0] - angle * u[1], u1 = u[1] + angle * u[0], length = std::sqrt(u0 * u0 + u1 * u1);
  u[0] = u0 / length, u[1] = u1 / length;
}

// Rows that a loop over the held ones takes at once: the three of a sliding contact.
inline int width_of(const Ncp& ncp, const CreepScratch& s, int row) { return slides(ncp, s, row) ? 3 : 1; }

// Modes, directions and impulses to begin with: those of a point.
inline void creep_start(const Ncp& ncp, const Point& at, CreepScratch& s) {
  classify(Regularised{ncp}, at.x, at.nu, s.mode);
  std::memcpy(s.at.x, at.x, sizeof(double) * ncp.width);
  std::memset(s.slip, 0, sizeof(double) * ncp.width);
  for (int c = 0; c < ncp.problem.contacts; ++c) {
    const double *x = s.at.x + 3 * c, length = std::hypot(x[0], x[1]);
    s.direction[3 * c] = length > 0 ? x[0] / length : 1.0, s.direction[3 * c + 1] = length > 0 ? x[1] / length : 0.0;
  }
}

// Puts impulses into the modes: zero where a contact or a limit is open, on the cone where one slides, at the bound where a joint does.
inline void into_modes(const Ncp& ncp, CreepScratch& s) {
  const ContactProblem& p = ncp.problem;
  double* x = s.at.x;
  for (int c = 0; c < p.contacts; ++c) {
    double *y = x + 3 * c, *u = s.direction + 3 * c;
    if (s.mode[c] == SEPARATING) y[0] = y[1] = y[2] = 0.0;
    if (s.mode[c] != SLIDING) continue;
    y[2] = std::max(y[2], 0.0), y[0] = p.mu[c] * y[2] * u[0], y[1] = p.mu[c] * y[2] * u[1];
  }
  for (int k = 0, r = 3 * p.contacts; k < p.limits + p.dry; ++k, ++r)
    if (!s.mode[p.contacts + k]) x[r] = k < p.limits ? 0.0 : std::copysign(p.bound[k - p.limits], x[r]);
}

// The derivative of rho (nu + s u) + weight lambda by the unknowns of the held rows, from their part of G in U: angle (as a length on
// the circle), speed (times rho) and lambda_n of a sliding contact, the impulses of what else is held. Row i belongs to held[i].
inline void creep_matrix(const Ncp& ncp, const CreepScratch& s, const int* held, int n, double weight, double* U, int ld) {
  const ContactProblem& p = ncp.problem;
  for (int j = 0; j < n; j += width_of(ncp, s, held[j])) {
    if (!slides(ncp, s, held[j])) continue;
    const double *u = s.direction + held[j], mu = p.mu[held[j] / 3];
    for (int i = 0; i < n; ++i) {
      double* row = U + (ptrdiff_t)i * ld + j;
      const double along = u[0] * row[0] + u[1] * row[1], across = u[0] * row[1] - u[1] * row[0];
      row[0] = mu > 0 ? across : 0.0, row[1] = 0.0, row[2] += mu * along;
    }
  }
  for (int i = 0; i < n; ++i)
    for (int at = 0; at < ld; at += W) store(U + (ptrdiff_t)i * ld + at, ncp.rho[held[i]] * load(U + (ptrdiff_t)i * ld + at));
  for (int i = 0; i < n; i += width_of(ncp, s, held[i])) {
    const int r = held[i], c = r / 3;
    double *first = U + (ptrdiff_t)i * ld + i, *second = first + ld;
    if (!slides(ncp, s, r)) {
      first[0] += weight;
      continue;
    }
    if (p.mu[c] == 0) {  // whatever the slip is
      first[0] += 1.0, second[1] += 1.0, second[ld + 2] += weight;
      continue;
    }
    const double *u = s.direction + r, radius = p.mu[c] * s.at.x[r + 2];
    const double turned = weight + (radius > 0 ? ncp.rho[r] * s.slip[c] / radius : 0.0);
    first[0] -= turned * u[1], second[0] += turned * u[0];
    first[1] += u[0], second[1] += u[1];
    first[2] += weight * p.mu[c] * u[0], second[2] += weight * p.mu[c] * u[1], second[ld + 2] += weight;
  }
}

// rho (nu + s u), at the nu that s has, of the held rows into `right` (m,), zero elsewhere and along the tangents of contacts without
// friction; the largest |nu + s u|, m/s.
inline double creep_error(const Ncp& ncp, const CreepScratch& s, const int* held, int n, double* right) {
  std::memset(right, 0, sizeof(double) * ncp.width);
  double size = 0;
  for (int i = 0; i < n; ++i) {
    const int r = held[i];
    const bool slips = slides(ncp, s, r) && r % 3 < 2;
    const double left = !slips ? s.at.nu[r] : ncp.problem.mu[r / 3] > 0 ? s.at.nu[r] + s.slip[r / 3] * s.direction[r] : 0.0;
    right[r] = ncp.rho[r] * left;
    if (!(std::fabs(left) <= size)) size = std::fabs(left);
  }
  return size;
}

// The matrix of Newton's step, eliminated, and its null space. sliding: whether a contact slides; else the matrix is symmetric but for
// the scale of its rows, and pivots are found on the diagonal.
inline void eliminate_creep(const Ncp& ncp, const CreepScratch& s, SelectionScratch& space, double weight, bool sliding) {
  Elimination& e = space.elimination;
  std::memcpy(e.U, space.Ghh, sizeof(double) * e.n * e.ld);
  creep_matrix(ncp, s, space.held, e.n, weight, e.U, e.ld);
  eliminate(e, !sliding);
  null_space(e, space.curvature.N, e.ld);
}

// space.candidate = Newton's step for `right`, of least norm where the unknowns are not determined; its negative is to be taken.
inline void creep_step(const Ncp& ncp, const CreepScratch& s, SelectionScratch& space, double weight, const double* right) {
  eliminate_creep(ncp, s, space, weight, true);
  least_solution(right, space);
}

// Newton's step where contacts contradict each other. Elimination leaves all of it to the rows that it drops; here it is spread over all
// rows: the velocities that remain get the least norm.
inline void share_contradiction(const Ncp& ncp, SelectionScratch& space, double* right) {
  Elimination& e = space.elimination;
  const int n = e.n, count = n - e.rank, ld = e.ld;
  if (count == 0) return least_solution(right, space);
  double *Y = space.curvature.N, *left = space.one;
  left_null_space(e, Y, ld);
  for (int k = 0; k < count; ++k)
    for (int i = 0; i < n; ++i) Y[(ptrdiff_t)k * ld + i] *= ncp.rho[space.held[i]];
  orthonormalise(Y, ld, count, n);
  for (int i = 0; i < ld; ++i) left[i] = i < n ? right[space.held[i]] / ncp.rho[space.held[i]] : 0.0;
  for (int k = 0; k < count; ++k) add(-dot(Y + (ptrdiff_t)k * ld, left, n), Y + (ptrdiff_t)k * ld, left, n);
  for (int i = 0; i < n; ++i) right[space.held[i]] = ncp.rho[space.held[i]] * left[i];
  null_space(e, Y, ld);
  least_solution(right, space);
}

// Newton's steps in the modes, until nu + s u falls to `rounding` or falls no more.
inline void creep_newton(const Ncp& ncp, CreepScratch& s, SelectionScratch& space, double* right, double rounding, int& iterations) {
  const ContactProblem& p = ncp.problem;
  Elimination& e = space.elimination;
  double before = HUGE_VAL, length = 1.0;
  bool any, shared = false;
  const int n = e.n = held_rows(p, s.mode, space.held, any);
  e.ld = padded(n);
  gather(p, space.held, n, space.Ghh, e.ld);
  for (int k = 0;; ++k, ++iterations) {
    velocity(Regularised{ncp}, s.at.x, s.at.nu);
    const double size = creep_error(ncp, s, space.held, n, right);
    if (k == CREEP_ITERATIONS || !(size > rounding) || shared) return;
    shared = k > (any ? 3 : 0) && length == 1.0 && size > 0.5 * before;  // the rows contradict each other: the last step
    before = size;
    if (any || k == 0) eliminate_creep(ncp, s, space, 0.0, any);  // without sliding the equations are linear
    if (shared) share_contradiction(ncp, space, right);
    else least_solution(right, space);
    const double* step = space.candidate;
    length = 1.0;
    for (int i = 0; i < n; i += width_of(ncp, s, space.held[i])) {
      if (!slides(ncp, s, space.held[i])) continue;
      const double normal = s.at.x[space.held[i] + 2], radius = p.mu[space.held[i] / 3] * normal;
      if (std::fabs(step[i]) > CREEP_TURN * radius) length = std::min(length, CREEP_TURN * radius / std::fabs(step[i]));
      if (step[i + 2] > CREEP_FALL * normal) length = std::min(length, CREEP_FALL * normal / step[i + 2]);
    }
    for (int i = 0; i < n; i += width_of(ncp, s, space.held[i])) {
      const int r = space.held[i];
      double *x = s.at.x + r, *u = s.direction + r;
      if (!slides(ncp, s, r)) {
        x[0] -= length * step[i];
        continue;
      }
      const double radius = p.mu[r / 3] * x[2];
      if (radius > 0) turn_direction(u, -length * step[i] / radius);
      s.slip[r / 3] -= length * step[i + 1] / ncp.rho[r];
      x[2] -= length * step[i + 2];
    }
    into_modes(ncp, s);
  }
}

// Where contacts contradict each other: the change of impulse, into `way` (m,), along which the stress between them grows as a
// regularisation falls to zero. The equations of the held rows have a left null space, and what they cannot fulfil is in `right`.
inline void stress(const Ncp& ncp, const CreepScratch& s, SelectionScratch& space, const double* right, double* way) {
  const ContactProblem& p = ncp.problem;
  const int n = space.elimination.n;
  creep_step(ncp, s, space, STRESS, right);
  std::memset(way, 0, sizeof(double) * ncp.width);
  for (int i = 0; i < n; i += width_of(ncp, s, space.held[i])) {
    const int r = space.held[i];
    const double *u = s.direction + r, *step = space.candidate + i;
    if (!slides(ncp, s, r)) {
      way[r] = -step[0];
      continue;
    }
    const double mu = p.mu[r / 3];
    way[r] = u[1] * step[0] - mu * u[0] * step[2], way[r + 1] = -u[0] * step[0] - mu * u[1] * step[2], way[r + 2] = -step[2];
  }
}

// The share of `way` at which the first mode ends: a sticking contact leaves its cone, a normal impulse or that of a limit vanishes,
// a joint's friction reaches its bound. Infinite if none does.
inline double first_end(const Ncp& ncp, const CreepScratch& s, const double* way) {
  const ContactProblem& p = ncp.problem;
  double first = HUGE_VAL;
  for (int c = 0; c < p.contacts; ++c) {
    if (s.mode[c] == SEPARATING) continue;
    const double *a = s.at.x + 3 * c, *v = way + 3 * c, w = -p.mu[c] * p.mu[c];
    if (v[2] < 0) first = std::min(first, -a[2] / v[2]);
    const double A = v[0] * v[0] + v[1] * v[1] + w * v[2] * v[2], B = v[0] * a[0] + v[1] * a[1] + w * v[2] * a[2];
    const double C = a[0] * a[0] + a[1] * a[1] + w * a[2] * a[2], square = B * B - A * C;
    if (s.mode[c] != STICKING || !(square >= 0) || A == 0) continue;
    for (double root : {(-B + std::sqrt(square)) / A, (-B - std::sqrt(square)) / A})
      if (root > 0) first = std::min(first, root);
  }
  for (int k = 0, r = 3 * p.contacts; k < p.limits + p.dry; ++k, ++r) {
    if (!s.mode[p.contacts + k] || way[r] == 0) continue;
    if (k >= p.limits) first = std::min(first, (p.bound[k - p.limits] - std::copysign(s.at.x[r], s.at.x[r] * way[r])) / std::fabs(way[r]));
    else if (way[r] < 0) first = std::min(first, -s.at.x[r] / way[r]);
  }
  return first;
}

// Ends the modes that end within `share` of `way`.
inline void give_way(const Ncp& ncp, CreepScratch& s, const double* way, double share) {
  const ContactProblem& p = ncp.problem;
  for (int c = 0; c < p.contacts; ++c) {
    double y[3];
    for (int k = 0; k < 3; ++k) y[k] = s.at.x[3 * c + k] + share * way[3 * c + k];
    const double length = std::hypot(y[0], y[1]);
    if (s.mode[c] != SEPARATING && y[2] < 0) {
      s.mode[c] = SEPARATING, s.slip[c] = 0.0;
    } else if (s.mode[c] == STICKING && length > p.mu[c] * y[2]) {
      s.mode[c] = SLIDING;
      s.direction[3 * c] = y[0] / length, s.direction[3 * c + 1] = y[1] / length;
    }
  }
  for (int k = 0, r = 3 * p.contacts; k < p.limits + p.dry; ++k, ++r) {
    int& held = s.mode[p.contacts + k];
    const double y = s.at.x[r] + share * way[r];
    if (k < p.limits) held = held && y >= 0;
    else if (held && std::fabs(y) > p.bound[k - p.limits]) held = 0, s.at.x[r] = y;
  }
}

// Revises the modes by the signs at the end of Newton's steps: all that are wrong, or the one that is most so, as an impulse; whether
// there was one. slide: a contact that closes may slide at once, where its velocity says so. slack: velocity, and as rho times it
// impulse, by which what is not known any better may be wrong.
inline bool revise_modes(const Ncp& ncp, CreepScratch& s, double rounding, bool all, bool slide = false, double slack = 0.0) {
  const ContactProblem& p = ncp.problem;
  double largest = 0, worst = -1;
  int which = -1, becomes = 0;
  for (int r = 0; r < ncp.m; ++r) largest = std::max(largest, std::fabs(s.at.x[r]));
  auto become = [&](int at, int mode) {
    if (at < p.contacts && mode == SLIDING) {
      const bool closes = s.mode[at] == SEPARATING;  // friction against the velocity
      const double *along = (closes ? s.at.nu : s.at.x) + 3 * at, length = (closes ? -1.0 : 1.0) * std::hypot(along[0], along[1]);
      s.direction[3 * at] = along[0] / length, s.direction[3 * at + 1] = along[1] / length;
    }
    if (at < p.contacts) s.slip[at] = 0.0;
    s.mode[at] = mode;
  };
  auto wrong = [&](int at, int mode, double size) {
    if (all) become(at, mode);
    if (which < 0 || size > worst) which = at, becomes = mode, worst = size;
  };
  for (int c = 0; c < p.contacts; ++c) {
    const int r = 3 * c;
    const double *x = s.at.x + r, *nu = s.at.nu + r, length = std::hypot(x[0], x[1]);
    if (s.mode[c] == SEPARATING) {
      const bool slides = slide && ncp.rho[r] * std::hypot(nu[0], nu[1]) > -p.mu[c] * ncp.rho[r + 2] * nu[2];
      if (nu[2] < -rounding) wrong(c, slides ? SLIDING : STICKING, -nu[2] * ncp.rho[r + 2]);
    } else if (x[2] < -slack * ncp.rho[r + 2] || (s.mode[c] == SLIDING && x[2] < VANISHED * largest)) {
      wrong(c, SEPARATING, std::fabs(x[2]));
    } else if (s.mode[c] == SLIDING && s.slip[c] < -slack) {
      wrong(c, STICKING, -s.slip[c] * ncp.rho[r]);
    } else if (s.mode[c] == STICKING && length > (1 + CREEP_SLACK) * p.mu[c] * x[2] + slack * ncp.rho[r]) {
      wrong(c, SLIDING, length - p.mu[c] * x[2]);
    }
  }
  for (int k = 0, r = 3 * p.contacts; k < p.limits + p.dry; ++k, ++r) {
    const int at = p.contacts + k, held = s.mode[at];
    const double x = s.at.x[r], nu = s.at.nu[r];
    if (k < p.limits) {
      if (held ? x < -slack * ncp.rho[r] : nu < -slack) wrong(at, !held, held ? -x : -nu * ncp.rho[r]);
    } else {
      const double bound = p.bound[k - p.limits];
      if (held ? std::fabs(x) > bound + slack * ncp.rho[r] : x * nu > 0 && std::fabs(nu) > slack) wrong(at, !held, held ? std::fabs(x) - bound : std::fabs(nu) * ncp.rho[r]);
    }
  }
  if (!all && which >= 0) become(which, becomes);
  return which >= 0;
}

// A number of the modes, to recognise them by.
inline uint64_t fingerprint(const Ncp& ncp, const int* mode) {
  uint64_t hash = 14695981039346656037u;
  for (int k = 0; k < modes_count(ncp.problem); ++k) hash = (hash ^ (uint64_t)mode[k]) * 1099511628211u;
  return hash;
}

// Solves the problem from a point near a solution, into s.at; whether its residual, by `lawful(point)`, suffices.
template <class Lawful>
bool creep(const Ncp& ncp, const Point& at, CreepScratch& s, NewtonScratch& scratch, SelectionScratch& space, double rounding,
           int& iterations, Lawful lawful) {
  const Regularised law{ncp};
  for (const double reach : REACH) {
    creep_start(ncp, at, s);
    uint64_t seen[CREEP_ROUNDS];
    bool stressed = false;
    for (int round = 0; round < CREEP_ROUNDS; ++round) {
      seen[round] = fingerprint(ncp, s.mode);
      if (std::find(seen, seen + round, seen[round]) != seen + round) break;
      into_modes(ncp, s);
      creep_newton(ncp, s, space, scratch.rest, rounding, iterations);
      evaluate(law, s.at);
      if (lawful(s.at)) return true;
      if (revise_modes(ncp, s, rounding, round < TOGETHER)) continue;
      stress(ncp, s, space, scratch.rest, scratch.step);
      const double first = first_end(ncp, s, scratch.step);
      if (!std::isfinite(first)) break;
      give_way(ncp, s, scratch.step, reach * first);
      stressed = true;
    }
    if (!stressed) break;  // the others would take the same way
  }
  return false;
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
