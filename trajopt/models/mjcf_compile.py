"""Compiling an MJCF file with the `mujoco` package: missing assets left out, nothing read that is for drawing.

`trajopt.models.mjcf_files` has looked at the document before.
"""

import warnings
from pathlib import Path

import mujoco
import numpy as np

from trajopt.errors import ModelError
from trajopt.models.limits import LARGEST, is_regular, short

_COMPILED = {  # what the translation reads
    "body": ("mass", "inertia", "pos", "quat", "ipos", "iquat"),
    "geom": ("size", "pos", "quat", "friction"),
    "jnt": ("pos", "axis", "stiffness"),
    "dof": ("armature", "damping", "frictionloss"),
    "site": ("pos", "quat"),
}


def compile_mjcf(content: bytes, source: str, path: Path | None) -> tuple[mujoco.MjModel, list[str]]:
    """Compile; if that fails, once more without the assets whose files are missing. Also what there is to warn of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            spec = mujoco.MjSpec.from_file(str(path)) if path else mujoco.MjSpec.from_string(content.decode())
            _drop_textures(spec)
            spec.memory = -1  # of simulations in MuJoCo, which there are none of
            dropped: list[str] = []
            try:
                model = spec.compile()
            except ValueError:
                dropped = _drop_missing_assets(spec, path.parent if path else None)
                if not dropped:
                    raise
                model = spec.compile()
        except (ValueError, RuntimeError, MemoryError, mujoco.FatalError, mujoco.UnexpectedError) as error:
            raise ModelError(f"{source}: MuJoCo refuses the model: {_clean(error)}") from None
    _check_compiled(model, source)
    messages = list(dict.fromkeys(" ".join(str(w.message).split()) for w in caught))
    return model, dropped + [f"MuJoCo says: {message}" for message in messages]


def _check_compiled(model: mujoco.MjModel, source: str) -> None:
    """Raise `ModelError` for numbers that the compiler let overflow."""
    for kind, parts in _COMPILED.items():
        for part in parts:
            values = np.abs(np.asarray(getattr(model, f"{kind}_{part}"), float))
            wrong = [k for k, numbers in enumerate(values) if not np.all(numbers <= LARGEST)]
            if wrong:
                raise ModelError(
                    f"{source}: the {part} of {kind} {wrong[0]} is {np.max(values[wrong[0]]):g} after compilation; "
                    "look for a number that is far too large or small"
                )


def _clean(error: Exception) -> str:
    text = short(" ".join(str(error).split()), 2000)
    if "unknown exception" in text or isinstance(error, MemoryError):
        text = (
            "it runs out of memory, or meets a value that it does not check; look for a count or size that is too large"
        )
    return text.removeprefix("Error: ").removeprefix("XML Error: ")


def _drop_textures(spec: mujoco.MjSpec) -> None:
    """Textures and skins are for drawing only; without them nothing has to be read."""
    for texture in list(spec.textures):
        spec.delete(texture)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    for skin in list(spec.skins):
        spec.delete(skin)


def _drop_missing_assets(spec: mujoco.MjSpec, folder: Path | None) -> list[str]:
    """Take out meshes and height fields whose files are missing, with their geoms; sentences that say so."""
    missing = {}
    for mesh in [*spec.meshes, *spec.hfields]:
        if not mesh.file:
            continue
        file = Path(mesh.file).name if spec.strippath else mesh.file
        where = (folder or Path()) / spec.meshdir / file
        if folder is None or not is_regular(where):
            missing[mesh.name or Path(mesh.file).stem] = mesh
    if not missing:
        return []
    lost = []
    for geom in list(spec.geoms):
        asset = geom.meshname or geom.hfieldname
        if asset not in missing:
            continue
        massive = geom.mass > 0 if geom.mass == geom.mass else geom.density > 0
        if massive and not geom.parent.explicitinertial and geom.parent.name != "world":
            lost.append(geom.parent.name)
        spec.delete(geom)
    shown = [f"'{mesh.file}'" for mesh in missing.values()]
    files = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    for mesh in missing.values():
        spec.delete(mesh)
    messages = [f"asset files not found, their geoms are dropped: {files}"]
    if lost:
        messages.append(
            "these bodies have no inertial element and lose the mass of their dropped geoms: "
            + ", ".join(f"'{name}'" for name in dict.fromkeys(lost))
        )
    return messages
