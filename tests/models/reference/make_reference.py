"""Regenerate the fixtures that the bundled robots are compared with.

    python make_reference.py FOLDER [FOLDER ...]

Each folder is searched, with its subfolders, for the published descriptions named in `SOURCES` (they are not part of
this project; the comment at the top of each bundled file names the origin). Meshes, textures and visuals are stripped,
the rest is compiled by MuJoCo, and `<model>.npz` is written beside this script with

- `joint_names`, `joint_types` (nj,): without the free joint, in MuJoCo's order;
- `joint_ranges` (nj, 2), rad or m, infinite where a joint has none;
- `torque_limits` (nj,), N m or N, infinite where the source names none; `damping`, `armature`, `stiffness` (nj,);
- `total_mass` and `moving_mass`, kg: every body, and without those that are fixed to the world;
- `qpos` (20, nq): random configurations within the joint ranges, seeded by `SEED` and the model's place in `SOURCES`
  (unlimited joints within pi, a free base anywhere in a cube of side 2 m with a uniform orientation);
- `mass_matrix` (20, nv (nv + 1) / 2): lower triangles, armature included.

A source that is not found is skipped with a message and its fixture stays as it is.
"""

import pathlib
import sys
import xml.etree.ElementTree as ET

import mujoco
import numpy as np

SEED = 20210
N_CONFIGURATIONS = 20

# bundled model: (file name, text its source must contain, total mass in kg that the source prescribes, or None)
SOURCES = {
    "go1": ("go1.xml", 'model="go1"', None),
    "h1": ("h1.xml", 'model="h1"', None),
    "atlas": ("atlas_minimal_contact.urdf", 'name="atlas"', None),
    "ur5": ("ur5_robot.urdf", 'name="ur5"', None),
    "anymal-c": ("anymal_c.xml", 'model="anymal_c"', None),
    "panda": ("panda.xml", 'model="panda"', None),
    "half-cheetah": ("half_cheetah.xml", 'settotalmass="14"', 14.0),
    "hopper": ("hopper.xml", 'model="hopper"', None),
    "humanoid": ("humanoid.xml", 'model="Humanoid"', None),
}

DROPPED = {"material", "texture", "mesh", "light", "camera", "visual", "size", "sensor", "tendon", "equality", "gazebo"}


def _strip(parent: ET.Element) -> None:
    """Remove everything that needs a file which is not there, and what does not enter the dynamics of the tree."""
    for child in list(parent):
        tag = child.tag
        if not isinstance(tag, str) or tag in DROPPED or (tag == "geom" and "mesh" in child.attrib):
            parent.remove(child)
            continue
        if tag == "general" and "tendon" in child.attrib:
            parent.remove(child)
            continue
        child.attrib.pop("material", None)
        _strip(child)


def _strip_urdf(root: ET.Element) -> None:
    for element in list(root):
        if element.tag not in ("link", "joint"):
            root.remove(element)
    for link in root.findall("link"):
        for tag in ("visual", "collision"):
            for element in link.findall(tag):
                link.remove(element)
    ET.SubElement(ET.SubElement(root, "mujoco"), "compiler", fusestatic="false")


def load_reference(path: pathlib.Path, total_mass: float | None, floating_root: str | None) -> mujoco.MjModel:
    """Compile a published description without its assets. floating_root names the URDF link that gets a free joint."""
    root = ET.parse(path).getroot()
    if root.tag == "robot":
        _strip_urdf(root)
    else:
        _strip(root)
        compiler = root.find("compiler")
        if compiler is not None:
            compiler.attrib.pop("settotalmass", None)  # no longer accepted without a warning; applied below
    spec = mujoco.MjSpec.from_string(ET.tostring(root, encoding="unicode"))
    if floating_root is not None:
        spec.body(floating_root).add_freejoint()
    for key in list(spec.keys):
        spec.delete(key)
    model = spec.compile()
    if total_mass is not None:
        mujoco.mj_setTotalmass(model, total_mass)
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def sample_configurations(model: mujoco.MjModel, rng: np.random.Generator) -> np.ndarray:
    """(N_CONFIGURATIONS, nq) configurations within the joint ranges."""
    qpos = np.empty((N_CONFIGURATIONS, model.nq))
    for row in qpos:
        for joint in range(model.njnt):
            start = model.jnt_qposadr[joint]
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                row[start : start + 3] = rng.uniform(-1.0, 1.0, 3)
                quaternion = rng.standard_normal(4)
                row[start + 3 : start + 7] = quaternion / np.linalg.norm(quaternion)
            elif model.jnt_limited[joint]:
                row[start] = rng.uniform(*model.jnt_range[joint])
            else:
                row[start] = rng.uniform(-np.pi, np.pi)
    return qpos


def mass_matrices(model: mujoco.MjModel, qpos: np.ndarray) -> np.ndarray:
    """Joint-space inertia (n, nv, nv) at each row of qpos, armature included."""
    data = mujoco.MjData(model)
    matrices = np.zeros((len(qpos), model.nv, model.nv))
    for row, matrix in zip(qpos, matrices, strict=True):
        data.qpos[:] = row
        mujoco.mj_forward(model, data)
        for column, unit in zip(matrix.T, np.eye(model.nv), strict=True):
            result = np.empty(model.nv)
            mujoco.mj_mulM(model, data, result, unit)
            column[:] = result
    return matrices


def scalar_joints(model: mujoco.MjModel) -> list[int]:
    """Hinge and slide joints in order."""
    kinds = [int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)]
    return [j for j in range(model.njnt) if model.jnt_type[j] in kinds]


def torque_limits(model: mujoco.MjModel) -> np.ndarray:
    """Largest generalised force of the actuators of every scalar joint; infinite where no actuator limits it.

    A motor is limited by its control range times its gear, a servo by its force range, a joint of a URDF by its effort.
    """
    limits = dict.fromkeys(scalar_joints(model), np.inf)
    for joint in limits:
        if model.jnt_actfrclimited[joint]:
            limits[joint] = model.jnt_actfrcrange[joint, 1]
    for actuator in range(model.nu):
        joint = model.actuator_trnid[actuator, 0]
        gear = abs(model.actuator_gear[actuator, 0])
        if model.actuator_forcelimited[actuator]:
            limits[joint] = gear * model.actuator_forcerange[actuator, 1]
        elif model.actuator_ctrllimited[actuator]:
            limits[joint] = gear * model.actuator_ctrlrange[actuator, 1] * model.actuator_gainprm[actuator, 0]
    return np.array(list(limits.values()))


def joint_figures(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Names, types, ranges, limits and passive figures of the scalar joints."""
    joints = scalar_joints(model)
    dofs = model.jnt_dofadr[joints]
    ranges = np.where(model.jnt_limited[joints][:, None], model.jnt_range[joints], [[-np.inf, np.inf]])
    return {
        "joint_names": np.array([model.joint(j).name for j in joints]),
        "joint_types": model.jnt_type[joints],
        "joint_ranges": ranges,
        "torque_limits": torque_limits(model),
        "damping": model.dof_damping[dofs].reshape(len(joints)),
        "armature": model.dof_armature[dofs],
        "stiffness": model.jnt_stiffness[joints].reshape(len(joints)),
    }


def main(folders: list[str]) -> int:
    if not folders:
        print(__doc__)
        return 2
    here = pathlib.Path(__file__).parent
    for index, (name, (file_name, marker, total_mass)) in enumerate(SOURCES.items()):
        candidates = [path for folder in folders for path in sorted(pathlib.Path(folder).rglob(file_name))]
        found = [path for path in candidates if marker in path.read_text()]
        if not found:
            print(f"{name}: {file_name} with {marker} not found, fixture left as it is")
            continue
        model = load_reference(found[0], total_mass, "pelvis" if name == "atlas" else None)
        qpos = sample_configurations(model, np.random.default_rng([SEED, index]))
        lower = np.tril_indices(model.nv)
        np.savez_compressed(
            here / f"{name}.npz",
            total_mass=np.sum(model.body_mass),
            moving_mass=np.sum(model.body_mass[model.body_weldid != 0]),
            qpos=qpos,
            mass_matrix=mass_matrices(model, qpos)[:, lower[0], lower[1]],
            **joint_figures(model),
        )
        print(f"{name}: nv = {model.nv}, {np.sum(model.body_mass):.12g} kg, from {found[0].name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
