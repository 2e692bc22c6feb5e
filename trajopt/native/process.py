"""The process that computes: JAX and the core work with threads, which a fork leaves behind."""

import os

from trajopt.errors import ForkError

_owner: int | None = None  # the process in which the package first computed


def check_process() -> None:
    """Raise `ForkError` in a process that was forked from one which had computed before: some calls would wait for ever there."""
    global _owner
    here = os.getpid()
    if here == _owner:
        return
    if _owner is not None:
        raise ForkError(
            f"process {here} was forked from process {_owner} after JAX had been used there, and JAX's threads are missing here; "
            "start it by spawn: multiprocessing.get_context('spawn'), ProcessPoolExecutor(mp_context=...), "
            "gymnasium.make_vec(..., vector_kwargs={'context': 'spawn'})"
        )
    _owner = here
