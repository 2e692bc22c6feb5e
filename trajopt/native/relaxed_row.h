// One row of the contact problem on its central path (trajopt/dynamics/contact/central_path.py has the equations): how the impulse
// of a friction row changes with its velocity, its bound and the product that it is drawn towards.
#pragma once
#include <cmath>
#include <limits>

#include "vector.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

struct Pair { double x, y; };
TRAJOPT_INLINE Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
TRAJOPT_INLINE Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
TRAJOPT_INLINE Pair operator*(double s, Pair a) { return {s * a.x, s * a.y}; }
TRAJOPT_INLINE double dot(Pair a, Pair b) { return a.x * b.x + a.y * b.y; }
TRAJOPT_INLINE double length(Pair a) { return std::sqrt(dot(a, a)); }

// psi of the central path: friction is -s nu / psi.
inline double cone_slack(double rho, double s, Pair nu) { return (rho + std::sqrt(rho * rho + 4 * s * s * dot(nu, nu))) / (2 * s); }

// d tau = change - by_x d nu_x - by_y d nu_y - turned d s, at tau, nu, s and psi, of a Newton step towards the product `target`.
struct FrictionSlopes { Pair by_x, by_y, turned, change; };
inline FrictionSlopes friction_slopes(Pair tau, Pair nu, double s, double psi, double target) {
  const double scale = 1 / (s * psi - dot(nu, tau));
  auto inverse = [&](Pair y) { return (1 / psi) * (y + (dot(nu, y) * scale) * tau); };
  const double first = (target - s * psi - dot(tau, nu)) / s;
  return {inverse(Pair{s, 0} - (tau.x / s) * tau), inverse(Pair{0, s} - (tau.y / s) * tau), inverse(nu - (psi / s) * tau),
          inverse(-1.0 * (s * nu + psi * tau) - first * tau)};
}

// The share a > 0 of a step from which |tau + a d tau| < s + a d s holds no longer.
inline double room_in_cone(double s, Pair tau, double ds, Pair dtau) {
  const double l = length(tau), free = (s - l) * (s + l), slope = s * ds - dot(tau, dtau), bend = ds * ds - dot(dtau, dtau);
  const double inside = slope * slope - bend * free, below = std::sqrt(std::max(inside, 0.0)) - slope;
  return inside >= 0 && below > 0 ? free / below : std::numeric_limits<double>::infinity();
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
