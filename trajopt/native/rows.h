// Rows of one step that can act: nu = J v+ + b (docs/contact-semantics.md, trajopt/dynamics/contact/rows.py).
//
// A row that its velocity without it does not violate carries no impulse. Rows enter the problem where the free velocity violates
// them; after the solve the others are checked at v+ and those that were needed are added (`choose` is called again).
#pragma once
#include <algorithm>
#include <limits>

#include "compliance.h"
#include "equalities.h"
#include "jam.h"
#include "shape_pairs.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

// The table of docs/contact-semantics.md for one normal row: its offset b, slopes of b by distance and by normal velocity v_n before the
// step, and v_n.
struct Offset {
  bool exists, impact;
  double value, by_distance, by_velocity, velocity = 0;
};
inline Offset pushed_out(const Parameters& p, double distance, double velocity, double dt) {
  const double push = p.erp * distance / dt;
  const bool capped = push < -p.push_out_speed;
  return {true, false, (capped ? -p.push_out_speed : push) + p.damping * velocity, capped ? 0 : p.erp / dt, p.damping};
}
constexpr double WHOLE_RESTITUTION = 0.01;  // as in contact/laws/base.py: what is less counts in part
// The offset of a row that has the offset `gap` without restitution.
inline Offset bouncing(const Parameters& p, Offset gap, double velocity, double restitution, bool meets) {
  gap.velocity = velocity;
  if (!(restitution > 0 && gap.exists && meets && velocity < -p.rest_velocity)) return gap;
  const double share = 1 - std::min(1.0, restitution / WHOLE_RESTITUTION);
  return {true, true, share * gap.value + restitution * velocity, share * gap.by_distance, share * gap.by_velocity + restitution, velocity};
}
inline Offset normal_offset(const Parameters& p, bool detect, double distance, double velocity, double restitution, double dt) {
  const bool open = distance > 0;
  const Offset gap = open ? Offset{!detect, false, distance / dt, 1 / dt, 0} : pushed_out(p, distance, velocity, dt);
  return bouncing(p, gap, velocity, restitution, velocity + distance / dt < 0);
}
// The same of a contact with compliance: it exists at every distance, has no gap to close, and bounces at a distance too.
inline Offset smoothed_offset(const Parameters& p, double distance, double velocity, double restitution, double dt) {
  return bouncing(p, distance > 0 ? Offset{true, false, 0, 0, 0} : pushed_out(p, distance, velocity, dt), velocity, restitution, true);
}

// The coefficient of friction of a contact with this offset: another one where it bounces.
inline double friction_of(const Parameters& p, const Candidate& c, Offset offset) {
  if (!offset.impact) return c.friction;
  return c.friction * (1 + std::min(1.0, c.restitution / WHOLE_RESTITUTION) * (p.pair_impact_friction[c.pair] - 1));
}

struct Frame { V3<double> axis[3]; };  // tangent 1, tangent 2, normal
inline Frame frame_of(V3<double> n) {
  const bool x = std::fabs(n.x) < 0.5;
  const V3<double> seed = x ? V3<double>{1, 0, 0} : V3<double>{0, 1, 0};
  const V3<double> t = seed - (x ? n.x : n.y) * n, unit = (1 / std::sqrt(dot(t, t))) * t;
  return {{unit, cross(n, unit), n}};
}

// support: where in `Rows::support` the DoFs that move it begin; kept: its penetration is not pushed out, since it can jam.
struct ContactRow { int candidate; Offset offset; Frame frame; int support, supports; bool kept; };
struct LimitRow { int index, dof; double sign, distance; Offset offset; };  // index: in Topology::limited
enum Choice : unsigned char { LEFT_OUT, CHOSEN, EXCLUDED };

template <class Size> struct Rows {
  int candidates, nc, nl, nd, ne, m, stride, dropped;  // ne: of equality constraints; stride: leading dimension of G and MJ
  Candidate* candidate;
  ContactRow* contact;
  LimitRow *limit, *all_limits;
  unsigned char *choice, *limit_choice;
  VertexScratch vertices;
  int *support, *order;
  double *J, *MJT, *MJ, *G;                        // rows of `lanes`: J, J M^-1; rows of `stride`: M^-1 J^T, Delassus matrix
  double *g, *before, *mu, *bound, *softness;      // before: nu at the velocity before the step; softness: of contacts with compliance
  Equalities<Size> equality;
  PlaneWork planes;
  PairWork pairs;
  bool push_out_dropped;    // the offsets are those of `Parameters::without_push_out`
  double fastest, slowest;  // of the last choice, m/s: approach of a row that was added, and least speed of parting of a contact that was not

  void clear() { nc = nl = nd = ne = m = dropped = 0, push_out_dropped = false; }
  // Whether a chosen row asks for a velocity of its own.
  bool pushes_out() const {
    return std::any_of(contact, contact + nc, [](const ContactRow& row) { return row.offset.value < 0; }) ||
           std::any_of(limit, limit + nl, [](const LimitRow& row) { return row.offset.value < 0; });
  }
};

template <class Size>
TRAJOPT_INLINE V3<double> relative_velocity(const Kinematics<Size>& kin, const Field<Size>& V, const Candidate& c) {
  return velocity_of(kin, V, c.link1, c.point) - velocity_of(kin, V, c.link2, c.point);
}

// The offset of a candidate at the velocities V before the step, which matter only for impacts and damping.
template <class Size>
Offset offset_of(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Field<Size>& V, const Candidate& c, double dt) {
  const bool matters = c.restitution > 0 || p.damping > 0;
  const double velocity = matters ? dot(c.normal, relative_velocity(kin, V, c)) : 0;
  return t.smoothed ? smoothed_offset(p, c.distance, velocity, c.restitution, dt)
                    : normal_offset(p, t.detect, c.distance, velocity, c.restitution, dt);
}

// `order` holds the indices of the `kept` entries with the least key, the first of equals, in ascending order; NaN counts as infinite.
template <class Key> void least(int* order, int count, int kept, Key number) {
  auto key = [&](int k) { return ordered(number(k)); };
  for (int k = 0; k < count; ++k) order[k] = k;
  if (kept >= count) return;
  auto before = [&](int a, int b) { return key(a) < key(b) || (key(a) == key(b) && a < b); };
  std::nth_element(order, order + kept, order + count, before);
  std::sort(order, order + kept);
}

constexpr double NO_LIMIT = 1e9;  // m, rad: the distance of a limit at infinity, where both limits have rows

// All limits at (q, v): the side that is nearer at the end of the step, or both, the lower ones first, where all act.
inline int all_limits(const Topology& t, const Parameters& p, const double* q, const double* v, double dt, LimitRow* out) {
  int count = 0;
  if (t.relaxed) {
    for (double sign : {1.0, -1.0})
      for (int dof : t.limited) {
        const double room = std::min(sign > 0 ? q[t.scalar_q[dof]] - p.lower[dof] : p.upper[dof] - q[t.scalar_q[dof]], NO_LIMIT);
        out[count] = {count, dof, sign, room, normal_offset(p, t.detect, room, sign * v[dof], 0, dt)};
        ++count;
      }
    return count;
  }
  for (int dof : t.limited) {
    const double x = q[t.scalar_q[dof]], low = x - p.lower[dof], high = p.upper[dof] - x;
    const bool at_low = low + dt * v[dof] <= high - dt * v[dof];
    const double sign = at_low ? 1 : -1, distance = at_low ? low : high;
    out[count] = {count, dof, sign, distance, normal_offset(p, t.detect, distance, sign * v[dof], 0, dt)};
    ++count;
  }
  return count;
}

// Candidates and limits at (q, v), none chosen; those beyond the law's max_contacts and max_limits are excluded. far: with the closest
// that a whole report holds, although they cannot act within the step.
template <class Size>
void begin_rows(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Field<Size>& V, const double* q,
                const double* v, double dt, const double* given, int given_rows, bool far, Rows<Size>& r) {
  const int wanted = std::max(far || t.relaxed ? t.report_contacts : 0, t.max_contacts);
  const double within = t.smoothed ? reach_of_contact(p) : 0;  // contacts with compliance act so far away
  r.candidates = plane_candidates(t, p, kin, V, dt, within, wanted, r.candidate, r.vertices, r.planes);
  r.candidates += given_candidates(t, p, given, given_rows, r.candidate + r.candidates);
  if (!t.shape_pairs.empty()) {
    place_shapes(t, p, kin, V, r.pairs);
    r.candidates = pair_candidates(t, p, dt, wanted, r.candidates, r.candidate, r.pairs);
  }
  sort_candidates(r.candidate, r.candidates);
  r.clear();
  std::memset(r.choice, LEFT_OUT, r.candidates);
  const int limits = all_limits(t, p, q, v, dt, r.all_limits);
  std::memset(r.limit_choice, LEFT_OUT, limits);
  if (t.max_contacts >= 0 && r.candidates > t.max_contacts) {
    std::memset(r.choice, EXCLUDED, r.candidates);
    least(r.order, r.candidates, t.max_contacts, [&](int k) { return r.candidate[k].distance; });
    for (int k = 0; k < t.max_contacts; ++k) r.choice[r.order[k]] = LEFT_OUT;
    for (int k = 0; k < r.candidates; ++k) {
      const Candidate& c = r.candidate[k];
      r.dropped += r.choice[k] == EXCLUDED && c.distance + dt * dot(c.normal, relative_velocity(kin, V, c)) < 0;
    }
  }
  if (t.max_limits >= 0 && limits > t.max_limits) {
    auto predicted = [&](int k) { return r.all_limits[k].distance + dt * r.all_limits[k].sign * v[r.all_limits[k].dof]; };
    std::memset(r.limit_choice, EXCLUDED, limits);
    least(r.order, limits, t.max_limits, predicted);
    for (int k = 0; k < t.max_limits; ++k) r.limit_choice[r.order[k]] = LEFT_OUT;
    for (int k = 0; k < limits; ++k) r.dropped += r.limit_choice[k] == EXCLUDED && predicted(k) < 0;
  }
}

// Adds the rows that the velocity `after` (V_after of the links) violates by more than `slack`, which may be negative; V: before the step.
// Returns how many.
template <class Size>
int choose(const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const Field<Size>& V, const Field<Size>& V_after,
           const double* after, double dt, double slack, Rows<Size>& r) {
  int found = 0;
  r.fastest = 0, r.slowest = std::numeric_limits<double>::infinity();
  for (int k = 0; k < r.candidates; ++k) {
    if (r.choice[k] != LEFT_OUT) continue;
    const Candidate& c = r.candidate[k];
    if (t.smoothed && !in_reach(p, c.distance)) continue;
    const double then = dot(c.normal, relative_velocity(kin, V_after, c));
    if (!(t.smoothed || c.distance <= 0 || c.restitution > 0) && !(then + c.distance / dt < -slack)) {
      r.slowest = std::min(r.slowest, then + c.distance / dt);
      continue;
    }
    const Offset offset = offset_of(t, p, kin, V, c, dt);
    if (!offset.exists) continue;
    const double parting = then + offset.value;
    if (!(parting < -slack)) {
      r.slowest = std::min(r.slowest, parting);
      continue;
    }
    if (r.nc == t.most_contacts()) { ++r.dropped; continue; }
    r.choice[k] = CHOSEN, r.fastest = std::max(r.fastest, -parting);
    r.contact[r.nc++] = {k, offset, frame_of(c.normal), 0, 0, false};
    ++found;
  }
  for (size_t k = 0; k < t.limited.size(); ++k) {
    const LimitRow& limit = r.all_limits[k];
    if (r.limit_choice[k] != LEFT_OUT || !limit.offset.exists) continue;
    const double parting = limit.sign * after[limit.dof] + limit.offset.value;
    if (!(parting < -slack)) continue;
    r.limit_choice[k] = CHOSEN, r.fastest = std::max(r.fastest, -parting), r.limit[r.nl++] = limit, ++found;
  }
  if (r.nd == 0 && !t.dry.empty()) found += r.nd = static_cast<int>(t.dry.size());
  if (r.ne == 0 && t.equalities() > 0) found += r.ne = t.equalities();
  return found;
}

// Takes the push-out back from all rows, of which none is chosen any more; p: `Parameters::without_push_out`.
template <class Size>
void drop_push_out(const Topology& t, const Parameters& p, const double* q, const double* v, double dt, int dropped, Rows<Size>& r) {
  std::replace(r.choice, r.choice + r.candidates, static_cast<unsigned char>(CHOSEN), static_cast<unsigned char>(LEFT_OUT));
  const int limits = all_limits(t, p, q, v, dt, r.all_limits);
  std::replace(r.limit_choice, r.limit_choice + limits, static_cast<unsigned char>(CHOSEN), static_cast<unsigned char>(LEFT_OUT));
  r.clear();
  r.dropped = dropped, r.push_out_dropped = true;
}

// The DoFs that move one body of the contact and not the other, in `support`; with mimic joints all DoFs of the user's.
inline int support_of(const Topology& t, const Candidate& c, int* out) {
  int count = 0;
  if (t.projected()) {
    for (int j = 0; j < t.nv; ++j) out[count++] = j;
    return count;
  }
  t.each_between(c.link1, c.link2, [&](int j, double) { out[count++] = j; });
  return count;
}

// Takes the push-out of a penetration back where friction can jam the contact: to the offset of a contact that touches. J: its rows.
template <class Size>
void keep_if_jammed(Size n, const Topology& t, const Parameters& p, const double* J, const int* support, double dt, const Candidate& c,
                    ContactRow& row) {
  if (row.kept || !(c.distance < 0)) return;
  for (int k = 0; k < row.supports && !t.projected(); ++k)
    if (t.translates[support[k]]) return;  // a body that is free to go anywhere
  const int N = n.lanes();
  double A[3][3];
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b <= a; ++b) {
      vec acc = {};
      for (int k = 0; k < N; k += LANES) acc += load(J + a * N + k) * load(J + b * N + k);
      A[a][b] = A[b][a] = sum(acc);
    }
  row.kept = jams(A, c.friction);
  if (!row.kept) return;
  row.offset = t.smoothed ? smoothed_offset(p, 0, row.offset.velocity, c.restitution, dt)
                          : normal_offset(p, t.detect, 0, row.offset.velocity, c.restitution, dt);
  row.offset.by_distance = 0;
}

// out (3, stride) = J A for the rows J (3, N) of a contact, which are zero but for the columns `support`; A (N, stride).
inline void times_contact(const double* J, int N, const int* support, int supports, const double* A, int stride, double* out) {
  tiles<4>(0, stride / LANES, [&](int block, auto count) {
    constexpr int T = decltype(count)::value;
    vec acc[3][T] = {};
    for (int k = 0; k < supports; ++k) {
      const int i = support[k];
      const vec x = splat(J[i]), y = splat(J[N + i]), z = splat(J[2 * N + i]);
      for (int b = 0; b < T; ++b) {
        const vec column = load(A + i * stride + (block + b) * LANES);
        acc[0][b] += x * column, acc[1][b] += y * column, acc[2][b] += z * column;
      }
    }
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < T; ++b) store(out + a * stride + (block + b) * LANES, acc[a][b]);
  });
}

// J and J M^-1 of the contacts.
template <class Size>
void contact_rows(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const double* inverse, double dt,
                  Rows<Size>& r) {
  const int N = n.lanes();
  int* support = r.support;
  for (int k = 0; k < r.nc; ++k) {
    ContactRow& row = r.contact[k];
    const Candidate& c = r.candidate[row.candidate];
    double *J = r.J + 3 * k * N, *MJT = r.MJT + 3 * k * N;
    const double *one = &t.mask[c.link1 * N], *two = &t.mask[c.link2 * N];
    const V3<vec> point = splat(c.point);
    for (int b = 0; b < N; b += LANES) {
      const V6<vec> s = kin.S.six(b);
      const V3<vec> u = (loadu(one + b) - loadu(two + b)) * (s.l + cross(s.w, point - kin.origin.three(b)));
      for (int a = 0; a < 3; ++a) store(J + a * N + b, dot(splat(row.frame.axis[a]), u));
    }
    if (t.projected())
      for (int a = 0; a < 3; ++a) project(t, p, J + a * N);
    row.support = static_cast<int>(support - r.support), row.supports = support_of(t, c, support);
    keep_if_jammed(n, t, p, J, support, dt, c, row);
    times_contact(J, N, support, row.supports, inverse, N, MJT);
    support += row.supports;
  }
}

// J and J M^-1 of the chosen rows, their mu and bound.
template <class Size>
void rows_of_problem(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const double* inverse, double dt,
                     Rows<Size>& r) {
  const int N = n.lanes();
  r.m = 3 * r.nc + r.nl + r.nd + r.ne;
  const int first_limit = 3 * r.nc, first_dry = first_limit + r.nl, first_equality = first_dry + r.nd;
  contact_rows(n, t, p, kin, inverse, dt, r);
  auto scalar_row = [&](int row, int dof, double sign) {
    std::memset(r.J + row * N, 0, sizeof(double) * N);
    r.J[row * N + dof] = sign;
    for (int b = 0; b < N; b += LANES) store(r.MJT + row * N + b, sign * load(inverse + dof * N + b));
  };
  for (int k = 0; k < r.nl; ++k) scalar_row(first_limit + k, r.limit[k].dof, r.limit[k].sign);
  for (int k = 0; k < r.nd; ++k) scalar_row(first_dry + k, t.dry[k], 1), r.bound[k] = dt * p.friction_loss[t.dry[k]];
  if (r.ne > 0) {
    std::memcpy(r.J + first_equality * N, r.equality.J, sizeof(double) * r.ne * N);
    product(r.ne, N, r.MJT + first_equality * N, N, nullptr, 0, {r.equality.J, N, 1}, inverse, N, t.nv, 1);
    for (int k = 0; k < r.ne; ++k) r.bound[r.nd + k] = std::numeric_limits<double>::infinity();
  }
  for (int k = 0; k < r.nc; ++k) r.mu[k] = friction_of(p, r.candidate[r.contact[k].candidate], r.contact[k].offset);
}

// The whole problem of the chosen rows: those, the transpose of J M^-1, G = J M^-1 J^T, with compliance G + C, g = J v_free + b, and J v + b.
template <class Size>
void assemble(Size n, const Topology& t, const Parameters& p, const Kinematics<Size>& kin, const double* inverse,
              const double* v_free, const double* v, double dt, Rows<Size>& r) {
  const int N = n.lanes();
  rows_of_problem(n, t, p, kin, inverse, dt, r);
  const int stride = r.stride = padded(r.m), first_limit = 3 * r.nc, first_dry = first_limit + r.nl, first_equality = first_dry + r.nd;
  for (int row = r.m; row < stride; ++row) std::memset(r.MJT + row * N, 0, sizeof(double) * N);
  for (int row = 0; row < stride; row += LANES)
    for (int b = 0; b < N; b += LANES) transpose(r.MJT + row * N + b, N, r.MJ + b * stride + row, stride);
  for (int k = 0; k < r.nc; ++k) {
    const ContactRow& row = r.contact[k];
    times_contact(r.J + 3 * k * N, N, r.support + row.support, row.supports, r.MJ, stride, r.G + 3 * k * stride);
  }
  auto scalar_product = [&](int row, int dof, double sign) {
    for (int b = 0; b < stride; b += LANES) store(r.G + row * stride + b, sign * load(r.MJ + dof * stride + b));
  };
  for (int k = 0; k < r.nl; ++k) scalar_product(first_limit + k, r.limit[k].dof, r.limit[k].sign);
  for (int k = 0; k < r.nd; ++k) scalar_product(first_dry + k, t.dry[k], 1);
  if (r.ne > 0) product(r.ne, stride, r.G + first_equality * stride, stride, nullptr, 0, {r.equality.J, N, 1}, r.MJ, stride, t.nv, 1);
  auto row_velocities = [&](const double* at, double* nu) {
    for (int row = 0; row < r.m; ++row) {
      vec acc = {};
      for (int b = 0; b < N; b += LANES) acc += load(r.J + row * N + b) * load(at + b);
      nu[row] = sum(acc);
    }
    for (int k = 0; k < r.nc; ++k) nu[3 * k + 2] += r.contact[k].offset.value;
    for (int k = 0; k < r.nl; ++k) nu[first_limit + k] += r.limit[k].offset.value;
    for (int k = 0; k < r.ne; ++k) nu[first_equality + k] += p.erp / dt * r.equality.error[k];
  };
  row_velocities(v_free, r.g), row_velocities(v, r.before);
  for (int row = r.m; row < stride; ++row) r.g[row] = 0;
  if (!t.smoothed) return;
  for (int k = 0; k < r.nc; ++k) r.softness[k] = softness_at(p, r.candidate[r.contact[k].candidate].distance);
  soften(r.nc, r.softness, r.G, stride);
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
