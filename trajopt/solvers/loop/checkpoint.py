"""Checkpoints of the solver loop: written atomically, so that a killed run leaves the last complete one."""

import os
import pathlib
from typing import Any

import jax
import numpy as np

from trajopt import files
from trajopt.errors import OptionError


def write_checkpoint(
    path: str | os.PathLike, state: Any, identity: dict[str, str], progress: dict[str, Any], problem: dict[str, str] | None = None
) -> None:
    """Store the leaves of `state`, what it belongs to and how far the run is (numbers and arrays) as one .npz. problem: what
    `fingerprints` says of what is solved."""
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    arrays |= {f"identity_{key}": np.asarray(value) for key, value in identity.items()}
    arrays |= {f"problem_{key}": np.asarray(value) for key, value in (problem or {}).items()}
    arrays |= {f"progress_{key}": np.asarray(value) for key, value in progress.items()}
    files.write_arrays(path, arrays)


class _Progress(dict[str, np.ndarray]):
    """What a checkpoint says of the progress; asking for what it lacks raises `OptionError`."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.path = path

    def __missing__(self, key: str) -> np.ndarray:
        raise OptionError(f"cannot resume: '{self.path}' does not say '{key}'; another program wrote it: start anew")


class Checkpoint:
    """A checkpoint read back. `identity`, `progress` and `problem` are what was given to `write_checkpoint`."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = pathlib.Path(path)
        if not self.path.exists():
            raise OptionError(f"cannot resume: there is no checkpoint '{self.path}'")
        try:
            arrays = files.read_arrays(self.path, "start anew, without resuming")
        except OptionError as error:
            raise OptionError(f"cannot resume: what is there is not a checkpoint: {error}") from error
        self.identity = {k.removeprefix("identity_"): str(v) for k, v in arrays.items() if k.startswith("identity_")}
        self.problem = {k.removeprefix("problem_"): str(v) for k, v in arrays.items() if k.startswith("problem_")}
        self.progress = _Progress(self.path)
        self.progress |= {k.removeprefix("progress_"): v for k, v in arrays.items() if k.startswith("progress_")}
        names = [f"leaf_{i}" for i in range(sum(k.startswith("leaf_") for k in arrays))]
        if not self.identity or any(name not in arrays for name in names):
            raise OptionError(f"cannot resume: '{self.path}' is not a checkpoint, which has identity_... and leaf_0, leaf_1, ...")
        self._leaves = [arrays[name] for name in names]

    def check(self, identity: dict[str, str], problem: dict[str, str] | None = None) -> None:
        """Raise `OptionError` unless the checkpoint belongs to this problem, solver and gradient, and names what differs."""
        for key, value in identity.items():
            if self.identity.get(key) != value:
                raise OptionError(
                    f"cannot resume: '{self.path}' was made with {key} '{self.identity.get(key)}', not '{value}'; "
                    "use the same one, or start anew"
                )
        asked = problem or {}
        differing = sorted(key for key in self.problem.keys() | asked.keys() if self.problem.get(key) != asked.get(key))
        if self.problem and problem is not None and differing:
            raise OptionError(
                f"cannot resume: '{self.path}' was made with other problem settings: another {', another '.join(differing)}; "
                "give the same settings (and functions, which count by their code and where they are defined), or start anew"
            )

    def restore(self, template: Any) -> Any:
        """The stored state, in the structure of `template` (a freshly initialised state of the same solver)."""
        leaves, structure = jax.tree.flatten(template)
        if len(leaves) != len(self._leaves) or any(
            np.shape(a) != b.shape for a, b in zip(leaves, self._leaves, strict=True)
        ):
            raise OptionError(f"cannot resume: '{self.path}' was made with other problem settings or solver options")
        restored = [
            jax.numpy.asarray(b) if isinstance(a, jax.Array) else (b if isinstance(a, np.ndarray) else b.item())
            for a, b in zip(leaves, self._leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, restored)
