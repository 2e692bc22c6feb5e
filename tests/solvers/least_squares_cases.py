"""Least-squares problems with known answers, shared by the solver tests.

The residuals of equal numbers are the same function, so that what is compiled for one test serves the others.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from trajopt.problems import LeastSquaresProblem


def valley(x):
    return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def rosenbrock(**options) -> LeastSquaresProblem:
    """Minimum 0 at (1, 1); the valley x1 = x0^2 is where poor steps crawl."""
    return LeastSquaresProblem("rosenbrock", valley, np.array([-1.2, 1.0]), **options)


@functools.cache
def affine(m: int, n: int, seed: int) -> tuple[Callable, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(m, n)), rng.normal(size=m)
    constant = (jnp.asarray(A), jnp.asarray(b))
    return lambda x: constant[0].astype(x.dtype) @ x - constant[1].astype(x.dtype), A, b


def linear(m: int = 12, n: int = 5, seed: int = 0, **options) -> tuple[LeastSquaresProblem, np.ndarray, np.ndarray]:
    """|A x - b| with random A (m, n); returns the problem, A and b."""
    residual, A, b = affine(m, n, seed)
    return LeastSquaresProblem("linear", residual, np.zeros(n), **options), A, b


@functools.cache
def exponential(noise: float) -> Callable:
    t = np.linspace(0.0, 4.0, 30)
    y = 2.0 * np.exp(-1.3 * t) + 0.5 + noise * np.random.default_rng(1).normal(size=t.size)
    return lambda x, xp=jnp: x[0] * xp.exp(-x[1] * xp.asarray(t)) + x[2] - xp.asarray(y)


def decay(noise: float = 0.02, **options) -> tuple[LeastSquaresProblem, object]:
    """Fit a exp(-b t) + c to noisy samples; returns the problem and the residual in NumPy."""
    residual = exponential(noise)
    problem = LeastSquaresProblem("decay", residual, np.array([1.0, 0.5, 0.7]), **options)
    return problem, lambda x: residual(x, np)
