"""Writes what `sanitized.cc` needs of models, standing, into a folder: python sanitized_cases.py FOLDER NAME ...

A name is that of a bundled model, of one in `linkages.py`, or of a scene below; with `-smoothed` behind it the law is smoothed
contact, with `-free` there is no contact.
"""

import pathlib
import sys

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from trajopt.dynamics import NoContact, RigidContact, SmoothedContact  # noqa: E402
from trajopt.dynamics.compiled import compile_system, pack_parameters, topology_table  # noqa: E402
from trajopt.models import load_model  # noqa: E402
from trajopt.models.registry import load_model_from_string  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from dynamics import linkages  # noqa: E402

from native.cases import two_feet  # noqa: E402

# All convex shapes, two of each, within each other's reach.
SHAPES = ('type="sphere" size="0.1"', 'type="capsule" size="0.06 0.1"', 'type="box" size="0.1 0.12 0.08"',
          'type="cylinder" size="0.1 0.08"', 'type="ellipsoid" size="0.1 0.13 0.07"', 'type="mesh" mesh="hull"')  # fmt: skip
HULL = " ".join(f"{x:.3f}" for x in np.random.default_rng(7).uniform(-0.13, 0.13, 36))
BODIES = "".join(
    f'<body pos="{0.12 * (k % 4)} {0.12 * (k // 4)} {0.05 * (k % 3)}"><freejoint/><geom {SHAPES[k % 6]} mass="1"/></body>'
    for k in range(12)
)
HEAP = f"""<mujoco model="heap"><asset><mesh name="hull" vertex="{HULL}"/></asset><worldbody>
<geom type="plane" size="0 0 1" pos="0 0 -0.1"/>{BODIES}</worldbody></mujoco>"""

BOXES = "".join(
    f'<body pos="0 0 {0.1 + 0.2 * k}"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="{100 ** (k % 2)}"/></body>'
    for k in range(4)
)
PILE = f"""<mujoco model="pile"><worldbody><geom type="plane" size="0 0 1"/>{BOXES}</worldbody></mujoco>"""
SCENES = {"HEAP": HEAP, "PILE": PILE, "FEET": two_feet(4e-8)}  # the last: rows that contradict each other by a share of 4e-7

LAWS = {"": RigidContact(), "smoothed": SmoothedContact(300.0), "free": NoContact()}


def write(folder: pathlib.Path, name: str) -> None:
    """Sizes, table of the topology, parameters, configuration and actuation of a model."""
    which, _, contact = name.rpartition("-")
    if contact not in LAWS:
        which, contact = name, ""
    scene = SCENES.get(which) or getattr(linkages, which, None)
    model = load_model(which) if scene is None else load_model_from_string(scene)
    model, law = model.to_device(), LAWS[contact]
    table = topology_table(model, law)
    parameters = np.asarray(pack_parameters(compile_system(model, law, "semi-implicit"), model, 1e-3))
    q = np.array(model.keyframes.get("home", model.q_default), float)
    if scene is None and model.topology.joints[0].kind == "free":
        q[2] -= 1e-5  # a little inside the floor
    sizes = np.array([len(table), len(parameters), model.nq, model.nv, model.nu], np.int64)
    with (folder / f"{name}.case").open("wb") as file:
        for part in (sizes, table, parameters, q, np.asarray(model.actuation, float)):
            file.write(np.ascontiguousarray(part).tobytes())


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        write(pathlib.Path(sys.argv[1]), argument)
