"""Least-squares problems with known answers, shared by the solver tests."""

import jax.numpy as jnp
import numpy as np

from trajopt.problems import LeastSquaresProblem


def rosenbrock(**options) -> LeastSquaresProblem:
    """Minimum 0 at (1, 1); the valley x1 = x0^2 is where poor steps crawl."""

    def residual(x):
        return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])

    return LeastSquaresProblem("rosenbrock", residual, np.array([-1.2, 1.0]), **options)


def linear(m: int = 12, n: int = 5, seed: int = 0, **options) -> tuple[LeastSquaresProblem, np.ndarray, np.ndarray]:
    """|A x - b| with random A (m, n); returns the problem, A and b."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(m, n)), rng.normal(size=m)
    constant = (jnp.asarray(A), jnp.asarray(b))
    problem = LeastSquaresProblem(
        "linear",
        lambda x: constant[0].astype(x.dtype) @ x - constant[1].astype(x.dtype),
        np.zeros(n),
        **options,
    )
    return problem, A, b


def decay(noise: float = 0.02, **options) -> tuple[LeastSquaresProblem, object]:
    """Fit a exp(-b t) + c to noisy samples; returns the problem and the residual in NumPy."""
    t = np.linspace(0.0, 4.0, 30)
    y = 2.0 * np.exp(-1.3 * t) + 0.5 + noise * np.random.default_rng(1).normal(size=t.size)

    def residual(x, xp=jnp):
        return x[0] * xp.exp(-x[1] * xp.asarray(t)) + x[2] - xp.asarray(y)

    problem = LeastSquaresProblem("decay", residual, np.array([1.0, 0.5, 0.7]), **options)
    return problem, lambda x: residual(x, np)
