// The contact solve on plain arrays behind XLA's foreign-function interface, without a model: the last stage of the JAX implementation.
#include <vector>

#include "contact_derivative.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Array = ffi::Buffer<ffi::F64>;
using Flags = ffi::Buffer<ffi::PRED>;
using Result = ffi::ResultBuffer<ffi::F64>;
using Integers = ffi::ResultBuffer<ffi::S32>;

namespace trajopt {
inline namespace TRAJOPT_ISA {
namespace {

struct Aligned {  // a padded, zeroed, 64-byte aligned array
  explicit Aligned(size_t n) : store(n + PAD) {
    const size_t off = reinterpret_cast<uintptr_t>(store.data()) % 64 / sizeof(double);
    data = store.data() + (off ? PAD - off : 0);
  }
  std::vector<double> store;
  double* data;
};

// Rows that exist, in order; contacts and limits among them are counted.
std::vector<int> existing(const bool* exists, int nc, int nl, int nf, ContactProblem& p) {
  std::vector<int> rows;
  p.contacts = p.limits = 0, p.dry = nf;
  for (int c = 0; c < nc; ++c)
    if (exists[c]) {
      ++p.contacts;
      for (int k = 0; k < 3; ++k) rows.push_back(3 * c + k);
    }
  for (int l = 0; l < nl; ++l)
    if (exists[nc + l]) ++p.limits, rows.push_back(3 * nc + l);
  for (int f = 0; f < nf; ++f) rows.push_back(3 * nc + nl + f);
  return rows;
}

// Outputs: impulse and velocity (m); modes (nc + nl + nf); residual; counts (6): iterations, fallbacks, status, degenerate, selected, rows.
ffi::Error solve(Array G, Array g, Array mu, Flags exists, Array bound, Array init, Result impulse, Result velocity, Integers modes,
                 Result residual, Integers counts, double tolerance, int64_t max_iterations) {
  const int m = g.dimensions().back(), nc = mu.dimensions().back(), nf = bound.dimensions().back();
  const int nl = m - 3 * nc - nf;
  if (nl < 0 || exists.dimensions().back() != nc + nl || G.dimensions().back() != m)
    return ffi::Error::InvalidArgument("shapes of G, g, mu, exists and bound do not belong together");
  const size_t batch = counts->element_count() / 6;
  auto sample = [&](auto& a, size_t size, size_t i) { return a.typed_data() + (a.element_count() > size ? i * size : 0); };
  ContactWorkspace workspace;
  workspace.reserve(m);
  const int ld = padded(m);
  Aligned Gp((size_t)ld * ld), gp(ld), mup(nc + 1), start(ld);
  for (size_t i = 0; i < batch; ++i) {
    ContactProblem p;
    const bool* here = sample(exists, nc + nl, i);
    const double *Gi = sample(G, (size_t)m * m, i), *gi = sample(g, m, i), *mui = sample(mu, nc, i), *warm = sample(init, m, i);
    const std::vector<int> rows = existing(here, nc, nl, nf, p);
    const int n = rows.size();
    p.stride = padded(n), p.G = Gp.data, p.g = gp.data, p.mu = mup.data, p.bound = sample(bound, nf, i);
    std::fill(Gp.data, Gp.data + (size_t)ld * ld, 0.0);
    std::fill(gp.data, gp.data + ld, 0.0);
    for (int a = 0; a < n; ++a) {
      gp.data[a] = gi[rows[a]], start.data[a] = warm[rows[a]];
      for (int b = 0; b < n; ++b) Gp.data[(size_t)a * p.stride + b] = Gi[(size_t)rows[a] * m + rows[b]];
    }
    for (int c = 0, k = 0; c < nc; ++c)
      if (here[c]) mup.data[k++] = mui[c];
    const ContactSolution s = solve_contacts(p, start.data, {tolerance, (int)max_iterations}, workspace);
    double *x = impulse->typed_data() + i * m, *v = velocity->typed_data() + i * m;
    std::fill(x, x + m, 0.0);
    for (int r = 0; r < m; ++r) v[r] = gi[r];
    for (int a = 0; a < n; ++a) x[rows[a]] = s.lambda[a];
    for (int r = 0; r < m; ++r)
      for (int a = 0; a < n; ++a) v[r] += Gi[(size_t)r * m + rows[a]] * s.lambda[a];
    int32_t* mode = modes->typed_data() + i * (nc + nl + nf);
    for (int k = 0, a = 0; k < nc + nl; ++k) {
      if (k == nc) a = p.contacts;
      mode[k] = here[k] ? s.cone_mode[a] : 0;  // contacts and limits lie side by side
      a += here[k];
    }
    for (int f = 0; f < nf; ++f) mode[nc + nl + f] = s.dry_mode[f];
    residual->typed_data()[i] = s.residual;
    int32_t* count = counts->typed_data() + i * 6;
    count[0] = s.iterations, count[1] = (int)s.stage, count[2] = (int)s.status, count[3] = s.degenerate, count[4] = s.selected, count[5] = n;
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace TRAJOPT_ISA
}  // namespace trajopt

extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* trajopt_solve_contacts(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(trajopt_solve_contacts, trajopt::solve,
                              ffi::Ffi::Bind()
                                  .Arg<Array>().Arg<Array>().Arg<Array>().Arg<Flags>().Arg<Array>().Arg<Array>()
                                  .Ret<Array>().Ret<Array>().Ret<ffi::Buffer<ffi::S32>>().Ret<Array>().Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<double>("tolerance").Attr<int64_t>("max_iterations"));
