"""Which published model files load, and whether they mean here what MuJoCo and Pinocchio read in them.

The files are those of the packages in `PACKAGES`, fetched with pip as wheels and unpacked (never installed) into a
cache folder that git ignores. Each URDF, MJCF and SDF is loaded here and, where they can, by MuJoCo and Pinocchio.
For every file that two of them load, the moving mass is compared, and at random configurations the mass matrix and
the gravity forces, computed from the numbers of the loaded `Model` by the formulas of `mass_matrix` below, in NumPy.

    .venv/bin/python benchmarks/model_survey.py                    # all packages; the first time 0.9 GB are downloaded
    .venv/bin/python benchmarks/model_survey.py --only gymnasium --out survey.json

Xacro files are expanded by the package `xacro`, fetched in the same way,
which runs the code in them. Where Pinocchio and MuJoCo differ in a
URDF, agreement with either counts: MuJoCo gives links without <inertial> the mass of their shapes. A result is
`loaded`, `clear` (a `TrajoptError`) or `ugly` (anything else, or the process ended). Files are read in a process apart.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import zipfile
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "model_survey"
# Packages whose wheels hold robot files. `every` n: of a folder with more than 200 files only each n-th is read.
PACKAGES = (
    "airo-models", "armar", "brax", "bullet-safety-gym", "dexmate-urdf", "dm-control", "drake", "example-robot-data", "flygym",
    "fourier-robot-descriptions", "gb-robot-models", "gymnasium", "gymnasium-robotics", "icub-models", "mani-skill", "metaworld",
    "playground", "pybullet", "robosuite", "rtb-data", "scikit-robot",
)  # fmt: skip
CROWDED = 200
TOLERANCE = 1e-8  # relative disagreement above which a file is listed
CONFIGURATIONS = 3
SECONDS = 120.0  # after which the process that reads a file is ended


def fetch(package: str) -> pathlib.Path:
    """The folder with the unpacked wheel of a package."""
    folder = CACHE / package
    if folder.is_dir():
        return folder
    wheels = CACHE / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    found = sorted(wheels.glob(f"{name}-*.whl"))
    if not found:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
        ]
        for version in ("3.11", "3.9"):
            if not subprocess.run([*command, version, "--dest", str(wheels), package], check=False).returncode:
                break
        found = sorted(wheels.glob(f"{name}-*.whl"))
    if not found:
        raise SystemExit(f"pip found no wheel of '{package}'")
    with zipfile.ZipFile(found[-1]) as archive:
        archive.extractall(folder)
    return folder


def model_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The URDF, SDF and MJCF files below a folder; of folders with hundreds of them, some."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".urdf", ".sdf", ".world", ".xacro")]
    for path in sorted(folder.rglob("*.xml")):
        if b"<mujoco" in path.read_bytes():
            files.append(path)
    by_folder: dict[pathlib.Path, list[pathlib.Path]] = collections.defaultdict(list)
    for path in files:
        by_folder[path.parent if len(list(path.parent.glob("*.urdf"))) > 1 else path.parent.parent].append(path)
    chosen = []
    for group in by_folder.values():
        chosen += group if len(group) <= CROWDED else group[:: len(group) // 100]
    return sorted(chosen)


def mass_matrix(model: Any, q_tree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(M, g) over the tree DoFs: M = sum_i J_i^T I_i J_i, g = -sum_i J_i^T (weight of i), spatial vectors at the
    world's origin."""
    from trajopt.dynamics.model import NodeType
    from trajopt.models.placements import node_placements

    top = model.topology
    rotation, position = node_placements(model, q_tree)
    subspace = np.zeros((6, top.nv_tree))
    for i, (kind, v, parent) in enumerate(zip(top.node_types, top.v_starts, top.parents, strict=True)):
        if kind is NodeType.REVOLUTE:
            columns, turning = (rotation[i] @ model.axis[i])[:, None], True
        elif kind is NodeType.BALL:
            columns, turning = rotation[i], True
        elif kind is NodeType.PRISMATIC:
            columns, turning = (rotation[i] @ model.axis[i])[:, None], False
        else:
            columns, turning = rotation[parent] @ model.placement_rotation[i], False
        own = slice(v, v + columns.shape[1])
        subspace[:3, own] = np.cross(position[i], columns.T).T if turning else columns
        subspace[3:, own] = columns if turning else 0.0
    matrix, force = np.zeros((top.nv_tree, top.nv_tree)), np.zeros(top.nv_tree)
    for i in range(top.n_nodes):
        jacobian = subspace * top.dof_mask[i]
        com = position[i] + rotation[i] @ model.com[i]
        x, y, z = com
        to_com = np.eye(6)
        to_com[:3, 3:] = [[0, z, -y], [-z, 0, x], [y, -x, 0]]  # velocity of the centre of mass: v + w x c
        at_com = to_com @ jacobian
        inertia = rotation[i] @ model.inertia[i] @ rotation[i].T
        matrix += model.mass[i] * at_com[:3].T @ at_com[:3] + at_com[3:].T @ inertia @ at_com[3:]
        force -= model.mass[i] * at_com[:3].T @ model.gravity
    return matrix, force


def joints_of(model: Any) -> dict[str, tuple[str, int, int]]:
    """Kind, first tree coordinate and first tree DoF of every joint, mimic joints included."""
    top = model.topology
    found = {j.name: (j.kind, int(top.q_starts[j.nodes[0]]), int(top.v_starts[j.nodes[0]])) for j in top.joints}
    for mimic in top.mimics:
        node = int(top.dof_node[mimic.dof])
        found[mimic.name] = ("mimic", int(top.q_starts[node]), mimic.dof)
    return found


def random_tree_configuration(model: Any, rng: np.random.Generator) -> np.ndarray:
    from trajopt.dynamics.model import NodeType

    top = model.topology
    q = rng.uniform(-1, 1, top.nq_tree)
    for i, kind in enumerate(top.node_types):
        if kind is NodeType.BALL:
            part = slice(top.q_starts[i], top.q_starts[i] + 4)
            q[part] /= np.linalg.norm(q[part])
    return q


def difference(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray], weight: float) -> float:
    """The larger of the relative differences of mass matrix and gravity force; forces count from a thousandth of the weight."""
    floors = (1e-9, max(1e-3 * weight, 1e-9))
    return max(
        float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), floor))
        for a, b, floor in zip(ours, theirs, floors, strict=True)
    )


def with_mujoco(path: pathlib.Path, model: Any, is_mjcf: bool) -> dict[str, Any]:
    """Does MuJoCo load the file; how far apart the two readings are. Joints are matched by name, in MJCF by their order."""
    import mujoco

    try:
        peer = mujoco.MjModel.from_xml_path(str(path))
    except Exception as error:
        return {"loaded": False, "error": " ".join(str(error).split())[:200]}
    if model is None:
        return {"loaded": True}
    data = mujoco.MjData(peer)
    known = joints_of(model)
    top = model.topology
    moving = sum(float(peer.body_mass[b]) for b in range(peer.nbody) if peer.body_treeid[b] >= 0)
    if peer.nv != top.nv_tree:
        return {"loaded": True, "apart": float("inf"), "reason": f"{top.nv_tree} DoFs here, {peer.nv} there"}
    q_index, v_index = [], []
    if is_mjcf:
        q_index, v_index = list(range(top.nq_tree)), list(range(top.nv_tree))
    else:
        for j in range(peer.njnt):
            name = peer.joint(j).name
            if name not in known:
                return {"loaded": True, "apart": float("inf"), "reason": f"joint '{name}' is not known here"}
            _, q, v = known[name]
            nq, nv = {0: (7, 6), 1: (4, 3)}.get(int(peer.jnt_type[j]), (1, 1))
            q_index += range(q, q + nq)
            v_index += range(v, v + nv)
    rng, worst = np.random.default_rng(0), abs(float(model.mass.sum()) - moving) / max(moving, 1e-9)
    model = model.replace(gravity=np.array(peer.opt.gravity)) if not is_mjcf else model
    for _ in range(CONFIGURATIONS):
        q = random_tree_configuration(model, rng)
        data.qpos[:] = q[q_index]
        mujoco.mj_fwdPosition(peer, data)
        full, bias = np.zeros((peer.nv, peer.nv)), np.zeros(peer.nv)
        mujoco.mj_fullM(peer, data, full)
        full -= np.diag(peer.dof_armature)
        mujoco.mj_rne(peer, data, 0, bias)
        matrix, force = mass_matrix(model, q)
        here = matrix[np.ix_(v_index, v_index)], force[v_index]
        worst = max(worst, difference(here, (full, bias), 9.81 * moving))
    return {"loaded": True, "apart": worst}


def with_pinocchio(path: pathlib.Path, model: Any) -> dict[str, Any]:
    """As `with_mujoco`, for URDF files; Pinocchio's free and planar joints are converted to the conventions here."""
    import pinocchio

    try:
        peer = pinocchio.buildModelFromUrdf(str(path))
    except Exception as error:
        return {"loaded": False, "error": " ".join(str(error).split())[:200]}
    if model is None:
        return {"loaded": True}
    known, top, data = joints_of(model), model.topology, peer.createData()
    if peer.nv != top.nv_tree:
        return {"loaded": True, "apart": float("inf"), "reason": f"{top.nv_tree} DoFs here, {peer.nv} there"}
    moving = sum(inertia.mass for inertia in peer.inertias[1:])
    rng, worst = np.random.default_rng(0), abs(float(model.mass.sum()) - moving) / max(moving, 1e-9)
    peer.gravity.linear = np.asarray(model.gravity)
    for _ in range(CONFIGURATIONS):
        q = random_tree_configuration(model, rng)
        theirs, transform = np.zeros(peer.nq), np.zeros((peer.nv, top.nv_tree))
        for name, joint in zip(peer.names[1:], peer.joints[1:], strict=True):
            if name not in known:
                return {"loaded": True, "apart": float("inf"), "reason": f"joint '{name}' is not known here"}
            kind, start, v = known[name]
            part, rows = slice(joint.idx_q, joint.idx_q + joint.nq), slice(joint.idx_v, joint.idx_v + joint.nv)
            own = q[start : start + (7 if joint.nv == 6 else max(joint.nv, 1))]
            turn = np.eye(joint.nv)
            if kind == "free":
                theirs[part] = [*own[:3], *own[4:7], own[3]]
                turn[:3, :3] = pinocchio.Quaternion(*own[3:7]).toRotationMatrix().T
            elif kind == "ball":
                own = q[start : start + 4]
                theirs[part] = [*own[1:], own[0]]
            elif kind == "planar":
                theirs[part] = [own[0], own[1], np.cos(own[2]), np.sin(own[2])]
                c, s = np.cos(own[2]), np.sin(own[2])
                turn[:2, :2] = [[c, s], [-s, c]]
            else:
                theirs[part] = own if joint.nq == 1 else [np.cos(own[0]), np.sin(own[0])]
            transform[rows, v : v + joint.nv] = turn
        full = pinocchio.crba(peer, data, theirs)
        full = np.triu(full) + np.triu(full, 1).T
        gravity = pinocchio.rnea(peer, data, theirs, np.zeros(peer.nv), np.zeros(peer.nv))
        there = transform.T @ full @ transform, transform.T @ gravity
        worst = max(worst, difference(mass_matrix(model, q), there, 9.81 * moving))
    return {"loaded": True, "apart": worst}


def survey_file(path: pathlib.Path, package_folder: pathlib.Path) -> dict[str, Any]:
    """What happens to one file here and with the peers."""
    from trajopt.errors import TrajoptError
    from trajopt.models.registry import load_model_with_report

    suffix = path.suffix.lower()
    row: dict[str, Any] = {"format": {".urdf": "urdf", ".xml": "mjcf", ".xacro": "xacro"}.get(suffix, "sdf")}
    model, start = None, time.perf_counter()
    try:
        model, report = load_model_with_report(path, package_dirs=(package_folder,), xacro=True)
        row["warnings"] = report.warnings
        row["result"] = "loaded"
    except TrajoptError as error:
        row |= {"result": "clear", "error": str(error)}
    except Exception as error:
        row |= {"result": "ugly", "error": f"{type(error).__name__}: {error}"[:400]}
    row["seconds"] = time.perf_counter() - start
    if row["format"] in ("urdf", "mjcf"):
        row["mujoco"] = with_mujoco(path, model, row["format"] == "mjcf")
    if row["format"] == "urdf":
        row["pinocchio"] = with_pinocchio(path, model)
    return row


def work(listing: pathlib.Path, results: pathlib.Path) -> None:
    """Survey the files of a list, one line of JSON each; runs in a process of its own."""
    import signal

    sys.path.append(str(fetch("xacro")))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(CACHE)
    for line in listing.read_text().splitlines():
        path, folder = line.split("\t")
        signal.alarm(int(SECONDS))
        try:
            row = survey_file(pathlib.Path(path), pathlib.Path(folder))
        except Exception as error:
            row = {"format": "?", "result": "ugly", "error": f"survey: {type(error).__name__}: {error}"[:300]}
        signal.alarm(0)
        with results.open("a") as out:
            out.write(json.dumps({"path": path} | row) + "\n")


def survey(files: list[tuple[pathlib.Path, pathlib.Path]]) -> dict[str, dict[str, Any]]:
    """Rows by path. A file at which the process ends counts as `ugly`, and the next process goes on behind it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    listing, results = CACHE / "list.txt", CACHE / "results.jsonl"
    results.unlink(missing_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    pending = list(files)
    while pending:
        listing.write_text("\n".join(f"{path}\t{folder}" for path, folder in pending))
        subprocess.run([sys.executable, __file__, "--worker", str(listing), str(results)], check=False)
        if results.exists():
            rows = {row["path"]: row for row in map(json.loads, results.read_text().splitlines())}
        rest = [entry for entry in pending if str(entry[0]) not in rows]
        if rest:
            rows[str(rest[0][0])] = {
                "path": str(rest[0][0]),
                "format": "?",
                "result": "ugly",
                "error": "the process ended",
            }
            with results.open("a") as out:
                out.write(json.dumps(rows[str(rest[0][0])]) + "\n")
            rest = rest[1:]
        pending = rest
    return rows


def reason(message: str) -> str:
    """A message without its names and numbers, so that equal reasons can be counted."""
    text = re.sub(r"^\S+?( \(expanded\))?(, line \d+)?(, column \d+)?(, <[^>]*>)?: ", "", message)
    return re.sub(r"[-+]?\d+(\.\d+)?(e-?\d+)?", "N", re.sub(r"'[^']*'", "'_'", text))[:150]


def report(rows: dict[str, dict[str, Any]], packages: dict[str, pathlib.Path]) -> str:
    """Tables: results by package and format, agreement, reasons for refusal."""
    lines = [
        f"{'package':<28}{'format':<8}{'files':>6}{'loaded':>8}{'clear':>7}{'ugly':>6}{'peer loads':>12}{'both':>6}"
    ]
    total: collections.Counter = collections.Counter()
    table: dict[tuple[str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    apart, missed = [], collections.defaultdict(list)
    for path, row in rows.items():
        package = next(name for name, folder in packages.items() if path.startswith(str(folder) + os.sep))
        by_peer = any(row.get(peer, {}).get("loaded") for peer in ("mujoco", "pinocchio"))
        for count in (table[package, row["format"]], total):
            count.update(["files", row["result"]])
            count.update(["peer"] if by_peer else [])
            count.update(["both"] if by_peer and row["result"] == "loaded" else [])
        found = {peer: row[peer]["apart"] for peer in ("mujoco", "pinocchio") if "apart" in row.get(peer, {})}
        if found and not min(found.values()) <= TOLERANCE:
            peer = min(found, key=lambda name: found[name])
            apart.append((peer, found[peer], path, row[peer].get("reason", "")))
        if row["result"] != "loaded":
            missed[reason(row["error"])].append((by_peer, path))
    for (package, form), c in sorted(table.items()):
        lines.append(
            f"{package:<28}{form:<8}{c['files']:>6}{c['loaded']:>8}{c['clear']:>7}{c['ugly']:>6}{c['peer']:>12}{c['both']:>6}"
        )
    share = 100 * total["both"] / max(total["peer"], 1)
    lines += [
        f"{'all':<36}{total['files']:>6}{total['loaded']:>8}{total['clear']:>7}{total['ugly']:>6}{total['peer']:>12}{total['both']:>6}",
        "", f"of what MuJoCo or Pinocchio load, loaded here: {share:.1f} %", "", "not loaded, by reason (of these a peer loads):",
    ]  # fmt: skip
    for text, paths in sorted(missed.items(), key=lambda item: -len(item[1])):
        lines.append(
            f"  {len(paths):>4} ({sum(peer for peer, _ in paths):>3})  {text} e.g. {pathlib.Path(paths[0][1]).relative_to(CACHE)}"
        )
    unnamed = sum(not rows[path].get("warnings") for _, _, path, _ in apart)
    lines += ["", f"apart from all peers by more than {TOLERANCE:g}: {len(apart)}, {unnamed} of them without a warning"]
    for peer, worst, path, why in sorted(apart, key=lambda entry: entry[2]):
        warned = rows[path].get("warnings", ())
        lines.append(
            f"  {peer:<10}{worst:>9.1e}  {pathlib.Path(path).relative_to(CACHE)}  {why}  [{len(warned)} warnings]"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", help="packages; default: all")
    parser.add_argument("--out", type=pathlib.Path, help="write all rows to this JSON file")
    parser.add_argument("--worker", nargs=2, type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(*args.worker)
    packages = {package: fetch(package) for package in args.only or PACKAGES}
    files = [(path, folder) for folder in packages.values() for path in model_files(folder)]
    rows = survey(files)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))
    print(report(rows, packages))
    return None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
