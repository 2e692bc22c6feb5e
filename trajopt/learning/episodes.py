"""One episode of a policy as a motion: every step of the system in it, for pictures, animations and the viewer."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from trajopt.learning.environment import Environment
from trajopt.learning.networks import Acting


def episode(environment: Environment, policy: Acting, seed: int = 0) -> dict[str, Float[np.ndarray, "..."]]:
    """An episode under the policy, without exploration, until it ends.

    Returns what `Solution.trajectory` holds, of the T steps of the system: t (T+1,), s, q (T+1, nq), v (T+1, nv), u (T, nu), and
    with contacts their impulses in the contact frames, impulse (T, contacts, 3), N s. seed: of the initial state and of whatever
    else an episode draws.
    """

    def body(carry: Any, _: None) -> tuple[Any, Any]:
        state, seen = carry
        action = policy(seen)
        xs, us, infos = environment.taken(state, action)
        reached, outcome = environment.step(state, action)
        return (reached, outcome.observation), (xs.q, xs.v, us, infos.contacts.impulse, outcome.terminated)

    def played(key: Any) -> tuple[Any, Any]:
        first = environment.reset(key)
        return first[0].x, jax.lax.scan(body, first, None, environment.limit)[1]

    first, (q, v, u, impulse, over) = jax.tree.map(np.asarray, jax.jit(played)(jax.random.PRNGKey(seed)))
    actions = int(np.argmax(over)) + 1 if over.any() else environment.limit
    steps = actions * environment.substeps

    def flat(a: np.ndarray) -> np.ndarray:
        return a.reshape(-1, *a.shape[2:])[:steps]

    motion = {
        "t": float(environment.system.dt) * np.arange(steps + 1),
        "q": np.concatenate([np.asarray(first.q)[None], flat(q)]), "v": np.concatenate([np.asarray(first.v)[None], flat(v)]),
        "u": flat(u),
    }  # fmt: skip
    return motion | ({"impulse": flat(impulse)} if impulse.shape[2] else {})
