"""The recorded cube tosses of Pfrommer, Halm and Posa (ContactNets, CoRL 2020), as their repository holds them, or as one
archive.

The data are not part of this package: `data/tosses_processed` of DAIRLab/contact-nets on GitHub (BSD-3-Clause) has a file N.pt
for each toss, rows of position (3), quaternion w x y z (4), velocity (3) in world and angular velocity (3) in body axes,
control (6), in units of half an edge. An archive has the arrays offsets, position, quaternion_wxyz, velocity,
angular_velocity_body, rate, in m and s.
"""

import importlib
import os
import pathlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from trajopt import files
from trajopt.errors import MissingExtraError, RecordingError
from trajopt.estimation.recording import Recording

RATE = 148.0  # Hz, nominal
HALF_EDGE = 0.0524  # m, the unit of length of the repository's files


def read_tosses(path: str | os.PathLike, numbers: Iterable[int] | None = None) -> list[Recording]:
    """The tosses in an archive or in a folder of .pt files, with channels "pose" (7 columns) and "velocity" (6).

    The velocity of a row is the backward difference of poses: it belongs to the middle of the step that ends there, and has its
    time stamp. The first row belongs to a step before the first pose, and is left out.
    numbers: of the tosses, in the order of the archive, or the names of the files; None is all of them.
    Raises `RecordingError`; `MissingExtraError` where .pt files are to be read without PyTorch.
    """
    place = pathlib.Path(path)
    if place.is_dir():
        return _from_folder(place, numbers)
    arrays = files.read_arrays(place, "expected the archive of the tosses")
    needed = ("offsets", "position", "quaternion_wxyz", "velocity", "angular_velocity_body")
    lacking = [name for name in needed if name not in arrays]
    if lacking:
        raise RecordingError(
            f"'{place}' lacks the arrays {', '.join(lacking)}; expected the archive of the tosses, or a folder of .pt files"
        )
    offsets, rate = arrays["offsets"], float(arrays.get("rate", RATE))
    pose = np.concatenate([arrays["position"], arrays["quaternion_wxyz"]], 1).astype(float)
    velocity = np.concatenate([arrays["velocity"], arrays["angular_velocity_body"]], 1).astype(float)
    chosen = range(len(offsets) - 1) if numbers is None else [int(k) for k in numbers]
    beyond = [k for k in chosen if not 0 <= k < len(offsets) - 1]
    if beyond:
        raise RecordingError(f"numbers holds {beyond[0]}; the archive has tosses 0 to {len(offsets) - 2}")
    return [
        _toss(f"toss {k}", pose[offsets[k] : offsets[k + 1]], velocity[offsets[k] : offsets[k + 1]], rate)
        for k in chosen
    ]


def _toss(name: str, pose: Float[np.ndarray, "n 7"], velocity: Float[np.ndarray, "n 6"], rate: float) -> Recording:
    pose = np.concatenate([pose[:, :3], pose[:, 3:] / np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)], 1)
    t = np.arange(len(pose)) / rate
    return Recording(name, {"pose": (t, pose), "velocity": (t[1:] - 0.5 / rate, velocity[1:])})


def _from_folder(folder: pathlib.Path, numbers: Iterable[int] | None) -> list[Recording]:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtraError("the tosses' .pt files need PyTorch: pip install torch") from error
    found = sorted((int(path.stem), path) for path in folder.glob("*.pt") if path.stem.isdigit())
    wanted = None if numbers is None else {int(k) for k in numbers}
    chosen = [(number, path) for number, path in found if wanted is None or number in wanted]
    if not chosen:
        raise RecordingError(f"'{folder}' has none of the files that numbers asks for; expected 0.pt, 1.pt, ...")
    tosses = []
    for number, path in chosen:
        rows = np.asarray(torch.load(path, weights_only=True), float).reshape(-1, 19)
        pose, velocity = rows[:, :7].copy(), rows[:, 7:13].copy()
        pose[:, :3] *= HALF_EDGE
        velocity[:, :3] *= HALF_EDGE
        tosses.append(_toss(f"toss {number}", pose, velocity, RATE))
    return tosses
