"""Steps of an installed package: python wheel_smoke.py native|jax, the backend that is expected.

With the core: its step and Jacobian are those of the JAX implementation, and nothing warns. Without: the first system says once
what that costs and how to get the core.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import trajopt  # noqa: E402
from trajopt import native  # noqa: E402
from trajopt.dynamics import State, System  # noqa: E402

expected = sys.argv[1]
assert "site-packages" in trajopt.__file__, trajopt.__file__
assert not any(map(shutil.which, ("c++", "g++", "clang++", "cc", "cmake"))), "there is a compiler in the path"
model = trajopt.load_model("cube")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    systems = [System(model, dt=1e-3), System(model, dt=2e-3)]
said = [str(warning.message) for warning in said]
assert [system.resolved_backend for system in systems] == [expected] * 2, systems[0].backend_reason
x = State(jnp.asarray(model.keyframes["home"]), jnp.asarray([1.0, 0.1, -0.2, 0.3, 0.0, 0.1]))
u = jnp.zeros(systems[0].nu)
if expected == "native":
    forced = os.environ.get(native.ISA_VARIABLE)
    assert not said, said
    assert native.instruction_set() == (forced or native.instruction_set())
    ours, theirs = (System(model, dt=1e-3, backend=backend).linearize(x, u) for backend in ("native", "jax"))
    np.testing.assert_allclose(ours.x_next.v, theirs.x_next.v, atol=1e-9)
    np.testing.assert_allclose(ours.A, theirs.A, atol=1e-8 * np.abs(theirs.A).max())
    print(f"  the compiled core ({native.instruction_set()}) agrees with JAX")
else:
    assert len(said) == 1 and "slower" in said[0] and native.REBUILD in said[0], said
    assert np.isfinite(systems[0].step(x, u)[0].v).all()
    print(f"  {said[0]}")
