"""Nonlinear least squares: minimise 1/2 |r(x)|^2 subject to lower <= x <= upper, or a robust loss of r(x).

`compile(gradient)` turns the problem into an `oracle.LeastSquaresOracle`, the compiled functions that solvers call.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.gradients.differences import difference_quotients
from trajopt.errors import NonFiniteError, OptionError, ShapeError, UnknownNameError
from trajopt.names import NamedOptions, closest
from trajopt.problems.arguments import Argument, given, recorded, values
from trajopt.problems.estimates import estimates
from trajopt.problems.losses import check_loss, robust, robust_curvature, robust_slope
from trajopt.problems.oracle import LeastSquaresOracle
from trajopt.problems.parts import MOVED, Certificate, Defaults, Display, check_parts
from trajopt.problems.prior import Prior
from trajopt.problems.trajectory import Answer
from trajopt.problems.tree import LEAST_SQUARES, Structure, flatten, unflatten, with_arrays

GRADIENTS = ("implicit", "finite-difference", "ridders")


@dataclasses.dataclass(frozen=True, eq=False)
class LeastSquaresProblem(WithoutCaches, NamedOptions):
    """Nonlinear least squares: minimise $1/2 |r(x)|^2 + 1/2 |W (x (-) mean)|^2$ over $lower <= x <= upper$, or a robust loss.

    Arguments:
        name: the name of the problem in messages and files.
        residual: `x (nx,) -> r (m,)`, pure, on flat arrays of one float dtype; with `data`: `(x, data) -> r`.
        x0: initial guess, (nx,).
        data: an array or a pytree of arrays. `replace(data=...)` is the same problem on other data, for which nothing is compiled
            again; `solvers.solve_batch` takes many at once.
        jacobian: `x -> (r, J)`, J (m, n). Default: JAX's automatic derivative of `residual`.
        lower, upper: bounds of x, numbers or (nx,).
        prior: a `Prior`, which keeps its squares under a robust loss.
        loss: robust loss of r; "linear": the squares themselves. Solvers and reports then see `losses.robust(r)` as the residual.
        f_scale: size of r from which the loss is robust.
        integrate: `(x, dx) -> x`, which moves x on a manifold; J is the derivative in dx.
        difference: `(x0, x1) -> dx`, the inverse of `integrate`; needed with a prior on a manifold.
        tangent_size: dimension n of the manifold. Default: nx.
        scale: typical size of each variable, (n,) or a number: unit of difference steps, metric of damped and minimum-norm steps.
        tolerance: a success has $max |r_i|$ of at most this, unless the certificate states goals. None
            for estimation problems, whose residual is not zero at the optimum; there success means stationarity.
        certificate: a `Certificate`, what the user relies on, recomputed outside the solver.
        display: a `Display`, how solutions are shown.
        labels: names of the entries of x, for the report.
        truth: the true x, (nx,), of simulated data; then the report compares and `GaussNewton` states the distance in
            deviations.
        defaults: `Defaults`, the solver and options that `solve` takes by default.
        meta: strings for the summary, of which "contact" names the contact model.
        arguments, residual_type, validate: of the problem's own making, to be left out: what `dataclasses.replace` needs to know,
            shape (m,) and type of `full_residual`, and False for fields that have been validated.

    Raises, before anything is compiled: `ShapeError`, `NonFiniteError`, `OptionError`, naming the argument.
    """

    name: str
    residual: Callable[..., Array]
    x0: Float[Array, " nx"]
    _: dataclasses.KW_ONLY
    data: Any = None
    jacobian: Callable[..., tuple[Array, Array]] | None = None
    lower: Any = None
    upper: Any = None
    prior: Prior | None = None
    loss: str = "linear"
    f_scale: float = 1.0
    integrate: Callable[[Array, Array], Array] | None = None
    difference: Callable[[Array, Array], Array] | None = None
    tangent_size: int | None = None
    scale: Any = 1.0
    tolerance: float | None = None
    certificate: Certificate = Certificate()
    display: Display = Display()
    labels: tuple[str, ...] = ()
    truth: Any = None
    defaults: Defaults = Defaults()
    meta: Mapping[str, str] = dataclasses.field(default_factory=dict)
    arguments: Mapping[str, Argument] | None = dataclasses.field(default=None, repr=False)
    residual_type: Any = dataclasses.field(default=None, repr=False)
    validate: dataclasses.InitVar[bool] = True
    moved: ClassVar[Mapping[str, str]] = MOVED

    def __post_init__(self, validate: bool) -> None:
        if not validate:
            return
        set_field = lambda key, value: object.__setattr__(self, key, value)  # noqa: E731
        for key, value in given(self).items():
            set_field(key, value)
        before = values(self)
        check_parts(self._where, self)
        own = self.defaults
        set_field("defaults", Defaults(own.solver or "GaussNewton", own.options, own.gradient or "implicit"))
        set_field("x0", _initial(self.name, self.x0))
        n = self.x0.size if self.tangent_size is None else int(self.tangent_size)
        if self.integrate is None and n != self.x0.size:
            raise OptionError(f"{self._where}tangent_size is {n} but x0 has {self.x0.size} entries; give `integrate`")
        set_field("tangent_size", n)
        scale = np.broadcast_to(np.asarray(self.scale, float), (n,)) if np.ndim(self.scale) == 0 else self.scale
        scale = self._vector("scale", scale, n)
        if np.any(scale <= 0):
            i = int(np.argmax(scale <= 0))
            raise OptionError(f"{self._where}scale[{i}] is {scale[i]}; it must be positive")
        set_field("scale", scale)
        self._check_bounds(set_field)
        self._check_prior()
        check_loss(self.loss, self.f_scale, self._where)
        if self.truth is not None:
            set_field("truth", self._vector("truth", self.truth, self.x0.size))
            if self.integrate is not None and self.difference is None:
                raise OptionError(f"{self._where}truth on a manifold needs `difference` beside `integrate`")
        if self.labels and len(self.labels) != self.x0.size:
            raise ShapeError(f"{self._where}labels has {len(self.labels)} names; x0 has {self.x0.size} entries")
        if self.tolerance is not None and not (np.isfinite(self.tolerance) and self.tolerance > 0):
            raise OptionError(f"{self._where}tolerance is {self.tolerance}; it must be a positive number")
        for key in LEAST_SQUARES.functions:
            if getattr(self, key) is not None:
                set_field(key, with_arrays(getattr(self, key), self.x0.dtype))
        if self.data is not None:
            set_field("data", _checked_data(self._where, self.data))
        out = jax.eval_shape(self._rows, jax.ShapeDtypeStruct(self.x0.shape, self.x0.dtype))
        if getattr(out, "ndim", None) != 1 or not jnp.issubdtype(out.dtype, jnp.floating):
            shown = f"shape {out.shape} of {out.dtype}" if isinstance(out, jax.ShapeDtypeStruct) else out
            raise ShapeError(f"{self._where}residual(x) returned {shown}; expected a flat array of floats, (m,)")
        rows = out.shape[0] + (0 if self.prior is None else self.prior.weight().shape[0])
        dtype = out.dtype if self.prior is None else jnp.promote_types(out.dtype, self.x0.dtype)
        set_field("residual_type", jax.ShapeDtypeStruct((rows,), dtype))
        set_field("arguments", recorded(before, self))

    @property
    def _where(self) -> str:
        return f"problem '{self.name}': "

    def _rows(self, x: Array) -> Array:
        """The residual of the user."""
        return self.residual(x) if self.data is None else self.residual(x, self.data)

    # -- other data, the same programs ---------------------------------------------------------------------------------

    def on(self, data: Any) -> LeastSquaresProblem:
        """The problem on other data, which may be traced: nothing is validated."""
        return dataclasses.replace(self, data=data, validate=False)

    def replace(self, *, data: Any) -> LeastSquaresProblem:
        """The problem on other data of the same shapes; what is compiled stays. Raises `ShapeError` and `NonFiniteError`."""
        data = _checked_data(self._where, data)
        given, own = (
            [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(d)] for d in (data, self.data)
        )
        if given != own or str(jax.tree.structure(data)) != str(jax.tree.structure(self.data)):
            raise ShapeError(f"{self._where}data has {_described(given)}; expected {_described(own)} as in the problem")
        return self.on(data)

    @property
    def dimension(self) -> int:
        """Number of tangent coordinates n."""
        assert self.tangent_size is not None
        return self.tangent_size

    @property
    def initial_point(self) -> Float[np.ndarray, " nx"]:
        """Where solvers begin when no guess is given."""
        return np.asarray(self.x0)

    @property
    def feasibility_is_success(self) -> bool:
        """A residual within its tolerance is an answer whatever made the solver stop, and so is a point that meets the goals."""
        return self.tolerance is not None or bool(self.certificate.goals)

    # Bounds are kept exactly; nothing is known of other guesses than the problem's own.
    violation_tolerance = 0.0
    other_guesses = ""

    def bound_violation(self, x: Float[np.ndarray, " nx"]) -> float:
        """Largest distance of x from its bounds."""
        return float(np.maximum(np.maximum(self.lower - x, x - self.upper), 0.0).max(initial=0.0))

    @property
    def bounded(self) -> bool:
        """Whether any bound is finite."""
        return bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())

    def _vector(self, key: str, value: Any, n: int, infinite: bool = False) -> np.ndarray:
        array = np.asarray(value, float)
        if array.shape != (n,):
            raise ShapeError(f"{self._where}{key} has shape {array.shape}; expected ({n},)")
        bad = np.isnan(array) if infinite else ~np.isfinite(array)
        if bad.any():
            i = int(np.argmax(bad))
            expected = "a number" if infinite else "finite"
            raise NonFiniteError(f"{self._where}{key}[{i}] is {array[i]}; it must be {expected}")
        return array

    def _check_bounds(self, set_field: Callable) -> None:
        n = self.x0.size
        if self.integrate is not None and (self.lower is not None or self.upper is not None):
            raise OptionError(f"{self._where}bounds need plain addition; they cannot be combined with `integrate`")
        for key, default in (("lower", -np.inf), ("upper", np.inf)):
            value = getattr(self, key)
            value = np.full(n, default if value is None else float(value)) if np.ndim(value) == 0 else value
            set_field(key, self._vector(key, value, n, infinite=True))
        if np.any(self.lower > self.upper):
            i = int(np.argmax(self.lower > self.upper))
            raise OptionError(
                f"{self._where}infeasible bounds: lower[{i}] = {self.lower[i]} is above upper[{i}] = {self.upper[i]}"
            )
        self.check_point(self.x0)

    def _check_prior(self) -> None:
        if self.prior is None:
            return
        self._vector("prior.mean", self.prior.mean, self.x0.size)
        weight = self.prior.weight()
        if weight.ndim != 2 or weight.shape[1] != self.tangent_size:
            raise ShapeError(f"{self._where}prior weight has shape {weight.shape}; expected (k, {self.tangent_size})")
        if self.integrate is not None and self.difference is None:
            raise OptionError(f"{self._where}a prior on a manifold needs `difference` beside `integrate`")

    def check_point(self, x: Any, key: str = "x0") -> Float[np.ndarray, " nx"]:
        """`x` as an array of the problem's dtype, or an error naming what is wrong with it."""
        x = self._vector(key, x, self.x0.size).astype(self.x0.dtype)
        outside = (x < self.lower.astype(x.dtype)) | (x > self.upper.astype(x.dtype))
        if outside.any():
            i = int(np.argmax(outside))
            raise OptionError(
                f"{self._where}{key}[{i}] = {x[i]} is outside its bounds [{self.lower[i]}, {self.upper[i]}]; "
                "move it inside or widen the bounds"
            )
        return x

    def point_of(self, solution: Answer) -> Float[np.ndarray, " nx"]:
        """The point of a `Solution`, of this problem or of one of the same size."""
        return self.check_point(solution.x, "solution.x")

    # The functions that solvers see: prior rows appended, derivatives in tangent coordinates.

    def full_residual(self, x: Float[Array, " nx"]) -> Float[Array, " m"]:
        """Residual under the loss with the prior's rows appended, (m,)."""
        r = robust(self._rows(x), self.loss, self.f_scale)
        return r if self.prior is None else jnp.concatenate([r, self._prior_rows(x)])

    @functools.cached_property
    def tree(self) -> tuple[list[Any], Structure]:
        """Leaves and structure of the problem as a pytree."""
        return flatten(self, LEAST_SQUARES)

    def curvature(self, x: Float[Array, " nx"]) -> Float[Array, " m"]:
        """Second derivative of the cost by each entry of r, those of the prior (1) included, (m,)."""
        data = robust_curvature(self._rows(x), self.loss, self.f_scale)
        return data if self.prior is None else jnp.concatenate([data, jnp.ones_like(self._prior_rows(x))])

    def slope(self, x: Float[Array, " nx"]) -> Float[Array, " m"]:
        """Derivative of each entry of `full_residual` by the residual without its loss, (m,)."""
        data = robust_slope(self._rows(x), self.loss, self.f_scale)
        return data if self.prior is None else jnp.concatenate([data, jnp.ones_like(self._prior_rows(x))])

    def _prior_rows(self, x: Array) -> Array:
        assert self.prior is not None
        mean = jnp.asarray(np.asarray(self.prior.mean), x.dtype)
        dx = x - mean if self.difference is None else self.difference(mean, x)
        return jnp.asarray(self.prior.weight(), x.dtype) @ dx

    def _moved(self, x: Array) -> Callable[[Array], Array]:
        integrate = self.integrate
        if integrate is None:
            return lambda dx: self.full_residual(x + dx)
        return lambda dx: self.full_residual(integrate(x, dx))

    def linearization(self, gradient: str) -> Callable[[Array], tuple[Array, Array]]:
        """The jit-able function x -> (r, J) of a gradient mode, J (m, n) = d r(x (+) dx)/d dx at dx = 0. Raises `ShapeError` when
        it is traced, for what `jacobian` returns."""
        check_gradient(gradient, self.name)
        n, scale = self.dimension, self.scale

        def quotient(x: Array) -> tuple[Array, Array]:
            return self.full_residual(x), difference_quotients(gradient, self._moved(x), jnp.asarray(scale, x.dtype))

        def automatic(x: Array) -> tuple[Array, Array]:
            zero, m = jnp.zeros((n,), x.dtype), self.residual_type.shape[0]
            f = self._moved(x)
            # Forward mode costs n tangents, reverse mode m cotangents and the storage of the forward pass.
            derivative = jax.jacfwd if n <= 4 * m else jax.jacrev
            J, r = derivative(lambda dx: (f(dx),) * 2, has_aux=True)(zero)
            return r, J

        def given(x: Array) -> tuple[Array, Array]:
            assert jacobian is not None
            r, J = jacobian(x) if self.data is None else jacobian(x, self.data)
            if r.ndim != 1 or J.shape != (r.shape[0], n):
                raise ShapeError(
                    f"{self._where}jacobian(x) returned shapes {r.shape} and {J.shape}; expected (m,) and (m, {n})"
                )
            if self.loss != "linear":
                r, J = robust(r, self.loss, self.f_scale), robust_slope(r, self.loss, self.f_scale)[:, None] * J
            if self.prior is None:
                return r, J
            zero = jnp.zeros((n,), x.dtype)
            rows = lambda dx: self._prior_rows(x + dx if integrate is None else integrate(x, dx))  # noqa: E731
            return jnp.concatenate([r, rows(zero)]), jnp.concatenate([J, jax.jacfwd(rows)(zero)])

        jacobian, integrate = self.jacobian, self.integrate
        if gradient != "implicit":
            return quotient
        return automatic if jacobian is None else given

    def compile(self, gradient: str | None = None) -> LeastSquaresOracle:
        """What compiles residual and linearisation, when first called, in a gradient mode, by default the problem's own."""
        mode = self.defaults.gradient if gradient is None else gradient
        assert mode is not None  # validation has set it
        check_gradient(mode, self.name)
        if self.jacobian is not None:  # which is checked when it is traced
            jax.eval_shape(self.linearization(mode), jax.ShapeDtypeStruct(self.x0.shape, self.x0.dtype))
        return LeastSquaresOracle(self, mode)

    def residuals(self, x: Any, r: Float[np.ndarray, " m"]) -> dict[str, float]:
        """Quantities recomputed at x, given the recomputed residual vector r: what a `Solution` reports."""
        x = np.asarray(x)
        values = {
            "residual": float(np.abs(r).max(initial=0.0)),
            "residual_norm": float(np.linalg.norm(r)),
            "bound_violation": self.bound_violation(x),
        }
        return values | self.certificate.values(jnp.asarray(x))

    @property
    def limits(self) -> dict[str, float]:
        """What the recomputed quantities of an answer must not exceed; the residual where no goals decide."""
        limits = {**self.certificate.tolerances, "bound_violation": 0.0}
        return limits if self.tolerance is None or self.certificate.goals else {**limits, "residual": self.tolerance}

    def describe(self, solution: Answer) -> str:
        """What `report` says of a `Solution` and, with `labels`, its estimates."""
        own = "" if self.display.report is None else self.display.report(jnp.asarray(solution.x))
        if not self.labels:
            return own
        rows = estimates(self.labels, np.asarray(solution.x), solution.covariance, self.truth)
        return "\n".join([*rows, own] if own else rows)

    def check_gradient(self, gradient: str) -> None:
        """Raise `UnknownNameError` unless the problem offers this gradient mode."""
        check_gradient(gradient, self.name)


jax.tree_util.register_pytree_node(
    LeastSquaresProblem,
    lambda problem: problem.tree,
    lambda structure, numbers: unflatten(LeastSquaresProblem, structure, numbers),
)


def check_gradient(gradient: str, problem: str) -> None:
    """Raise unless `gradient` is a mode that least-squares problems offer."""
    if gradient not in GRADIENTS:
        raise UnknownNameError(
            f"gradient mode '{gradient}' is not available for problem '{problem}'{closest(gradient, GRADIENTS)}"
        )


def _checked_data(where: str, data: Any) -> Any:
    """The data as arrays. Raises `NonFiniteError` for entries that are not finite."""
    data = jax.tree.map(jnp.asarray, data)
    for leaf in jax.tree.leaves(data):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.all(jnp.isfinite(leaf))):
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(np.asarray(leaf)))[0])
            raise NonFiniteError(
                f"{where}data has a non-finite entry at {place}; give a weight of zero to what is missing"
            )
    return data


def _described(leaves: list[tuple[Any, ...]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves) or "nothing"


def _initial(name: str, x0: Any) -> np.ndarray:
    """x0 as a flat NumPy array of the float dtype that JAX will use."""
    x0 = np.asarray(x0)
    if x0.ndim != 1 or x0.size == 0:
        raise ShapeError(f"problem '{name}': x0 has shape {x0.shape}; expected a flat array with at least one entry")
    dtype = x0.dtype if x0.dtype == np.float32 else jax.dtypes.canonicalize_dtype(np.float64)
    return x0.astype(dtype)
