"""The boxed LCP on plain arrays: contact problems with friction bounded tangent by tangent, not from a `System`."""

from __future__ import annotations

from trajopt.dynamics.contact.solve_ncp import NCPResult, Options, solve_checked


def solve_boxed_lcp(G, g, mu, *, init=None, tol: float | None = None, max_iterations: int = 2000) -> NCPResult:
    """Solve the contact problem with box friction (Nimble, App. A), the boxed LCP of DART and ODE.

    Find lambda with nu = G lambda + g such that, for every contact, 0 <= nu_n _|_ lambda_n >= 0 and, for each of its two
    tangents t by itself, |lambda_t| <= mu lambda_n, and nu_t = 0 or lambda_t = -mu lambda_n sign(nu_t).

    G (3 nc, 3 nc), symmetric positive semidefinite, may be singular; g (3 nc,); mu (nc,), not negative. init: impulses whose
    modes are guessed first, such as those of the step before. Where these solve the problem `NCPResult.iterations` is 0; else
    the guess is corrected a few times, then Lemke's method takes over and `NCPResult.fallbacks` is 1. max_iterations: pivots.
    tol: residual that counts as solved, default 1e-10 in float64, 1e-5 in float32.

    Where contacts are redundant the impulse of least norm in its modes is returned (Nimble, App. B), whatever init was
    (docs/contact-semantics.md, Selection). Differentiable in G, g and mu, forward and reverse, by the implicit function theorem
    at fixed modes; jit and vmap. Raises `ShapeError`, `NonFiniteError` or `OptionError` naming the argument, as `solve_ncp` does.
    """
    return solve_checked(Options(tol, int(max_iterations), "box", "direct"), G, g, mu, init)
