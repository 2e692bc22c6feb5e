"""Writes what `sanitized.cc` needs of models, standing, into a folder: python sanitized_cases.py FOLDER NAME ...

A name is that of a bundled model, or of one in `linkages.py`.
"""

from __future__ import annotations

import pathlib
import sys

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from trajopt.dynamics import RigidContact  # noqa: E402
from trajopt.dynamics.compiled import compile_system, pack_parameters, topology_table  # noqa: E402
from trajopt.models import load_model  # noqa: E402
from trajopt.models.registry import load_model_from_string  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from dynamics import linkages  # noqa: E402


def write(folder: pathlib.Path, name: str) -> None:
    """Sizes, table of the topology, parameters, configuration and actuation of a model."""
    loops = getattr(linkages, name, None)
    model = load_model(name) if loops is None else load_model_from_string(loops)
    model, law = model.to_device(), RigidContact()
    table = topology_table(model, law)
    parameters = np.asarray(pack_parameters(compile_system(model, law, "semi-implicit"), model))
    q = np.array(model.keyframes.get("home", model.q_default), float)
    sizes = np.array([len(table), len(parameters), model.nq, model.nv, model.nu], np.int64)
    with (folder / f"{name}.case").open("wb") as file:
        for part in (sizes, table, parameters, q, np.asarray(model.actuation, float)):
            file.write(np.ascontiguousarray(part).tobytes())


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        write(pathlib.Path(sys.argv[1]), argument)
