// The compliance of smoothed contact (Smoothed, section 3.3 and Alg. 1; trajopt/dynamics/contact/laws/smoothed.py,
// docs/contact-laws.md). The impulses P that act obey the law of hard contact, each P_j in its cone, with the velocities
//
//     nu_j = sum_k G_jk P_k + exp(kappa phi_j) G_jj P_j + g_j,
//
// phi_j the distance of contact j and G_jj its own 3 x 3 block: G + C, C block-diagonal, takes the place of G. Limits, dry friction
// and equality constraints stay as they are. Contacts exist at every distance, and have no gap to close; those that C makes softer
// than rounding are left out.
#pragma once
#include <cmath>

#include "parameters.h"

namespace trajopt {
inline namespace TRAJOPT_ISA {

constexpr double FAR = 31.438483203129064;  // -log(100 eps): kappa phi from which an impulse is below rounding

inline bool in_reach(const Parameters& p, double distance) { return p.sharpness * distance < FAR; }
// Distance up to which contacts act, m.
inline double reach_of_contact(const Parameters& p) { return FAR / p.sharpness; }
// 1 + exp(kappa phi): by how much C multiplies a contact's own block of G.
inline double softness_at(const Parameters& p, double distance) { return 1 + std::exp(p.sharpness * distance); }

// G + C from G (m, stride) and the softness of each contact.
inline void soften(int contacts, const double* softness, double* G, int stride) {
  for (int k = 0; k < contacts; ++k)
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) G[static_cast<ptrdiff_t>(3 * k + a) * stride + 3 * k + b] *= softness[k];
}

}  // namespace TRAJOPT_ISA
}  // namespace trajopt
