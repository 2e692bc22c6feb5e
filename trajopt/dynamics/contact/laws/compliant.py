r"""Compliant contact laws: forces as explicit functions of penetration, velocity and tangential deformation.

Notation, per contact point, with the normal pointing from body 2 to body 1: d penetration depth, d' its rate, v_t tangential
velocity of body 1 relative to body 2, m tangential deformation of the material, mu friction of the pair, f_n, f_t the force
on body 1. Both laws keep |f_t| <= mu f_n and never pull.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from trajopt.dynamics.contact.laws.forces import ForceLaw, PointForces
from trajopt.options import check_options


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompliantContact(ForceLaw):
    r"""Hunt-Crossley normal force and a spring-damper-clutch along the surface (JaxSim thesis, eqs. 7.9-7.12 and Alg. 5).

        f_n = sqrt(d) max(0, k d + c d')
        s = k_t m + c_t v_t
        f_t = -sqrt(d) s  within the cone (sticking),   -mu f_n s / |s|  else (sliding)
        dm/dt = v_t  sticking,   -(f_t / sqrt(d) + k_t m) / c_t  sliding,   -(k_t / c_t) m  apart

    with the depth of penetration d, its rate $d'$ and the velocity along the surface $v_t$. The forces are continuous. The
    tangential deformation m (k, 3), world axes, is `State.contact`: one row for each candidate contact of the model
    (`collision.narrowphase.collide`, in its order), zero when undeformed. It belongs to a place in the pair's list: when a
    polyhedron rolls over and other vertices take these places, they inherit it.

    Deviation from the source: where the normal turns, the component of m along it is left out of s and decays like the
    deformation of an open contact.

    Options:
        stiffness (N/m^1.5): k, along the normal.
        damping (N s/m^1.5): c, along the normal.
        tangential_stiffness (N/m^1.5): $k_t$, along the surface. Default: `stiffness`.
        tangential_damping (N s/m^1.5): $c_t$, along the surface. Default: `damping`.
    """

    carries_state: ClassVar[bool] = True

    stiffness: float = 1e6
    damping: float = 2e3
    tangential_stiffness: float | None = None
    tangential_damping: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, normal in (("tangential_stiffness", self.stiffness), ("tangential_damping", self.damping)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, normal)
        positive = dict.fromkeys(("stiffness", "tangential_stiffness", "tangential_damping"), "(0, inf)")
        check_options(self, damping="[0, inf)", **positive)

    @property
    def relaxation_rate(self) -> float:
        assert self.tangential_stiffness is not None and self.tangential_damping is not None
        return self.tangential_stiffness / self.tangential_damping

    def force(
        self,
        depth: Float[Array, " k"],
        closing: Float[Array, " k"],
        slip: Float[Array, "k 3"],
        deformation: Float[Array, "k 3"] | None,
        friction: Float[Array, " k"],
    ) -> PointForces:
        assert deformation is not None
        assert self.tangential_stiffness is not None and self.tangential_damping is not None
        touching = depth > float(jnp.finfo(depth.dtype).tiny)
        root = jnp.where(touching, jnp.sqrt(jnp.where(touching, depth, 1.0)), 0.0)
        # Everything over sqrt(d), so that the deformation's rate needs no division by it.
        normal = jnp.where(touching, jnp.maximum(self.stiffness * depth + self.damping * closing, 0.0), 0.0)
        held = self.tangential_stiffness * deformation + self.tangential_damping * slip
        tangent, sliding = _clipped(-held, friction * normal)
        tangent = jnp.where(touching[:, None], tangent, 0.0)
        rate = -(tangent + self.tangential_stiffness * deformation) / self.tangential_damping
        return PointForces(root * normal, root[:, None] * tangent, sliding & touching, rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpringDamperContact(ForceLaw):
    r"""Linear spring, damper on approach only, and viscous friction up to Coulomb's bound (Smoothed, eqs. 17 and 18).

        f_n = k_p d + k_d max(d', 0),      f_t = -v_t / |v_t| min(k_f |v_t|, mu f_n)

    The law has no state and nothing sticks: below the bound a contact creeps at $f_t / k_f$. $f_n$ jumps to $k_d d'$ at
    touch-down. d is the depth of penetration, $d'$ its rate, $v_t$ the velocity along the surface.

    Options:
        stiffness (N/m): $k_p$, along the normal.
        damping (N s/m): $k_d$, along the normal, on approach.
        friction_damping (N s/m): $k_f$, along the surface.
    """

    stiffness: float = 1e4
    damping: float = 1e2
    friction_damping: float = 1e2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, stiffness="(0, inf)", damping="[0, inf)", friction_damping="(0, inf)")

    def force(
        self,
        depth: Float[Array, " k"],
        closing: Float[Array, " k"],
        slip: Float[Array, "k 3"],
        deformation: Float[Array, "k 3"] | None,
        friction: Float[Array, " k"],
    ) -> PointForces:
        touching = depth >= 0
        normal = jnp.where(touching, self.stiffness * depth + self.damping * jnp.maximum(closing, 0.0), 0.0)
        tangent, sliding = _clipped(-self.friction_damping * slip, friction * normal)
        return PointForces(normal, tangent, sliding & touching, None)


def _clipped(wanted: Float[Array, "k 3"], bound: Float[Array, " k"]) -> tuple[Float[Array, "k 3"], Bool[Array, " k"]]:
    """`wanted`, shortened to the length `bound` where it is longer, and where that is; derivatives are finite at zero."""
    square = jnp.sum(wanted * wanted, -1)
    longer = square > bound * bound
    length = jnp.sqrt(jnp.where(longer, square, 1.0))
    return jnp.where(longer, bound / length, 1.0)[:, None] * wanted, longer
