"""Builds the compiled core for the Python in use, against the headers of its XLA, into the package that is installed.

    python -m trajopt.native.build [--folder build/native] [--jobs 2] [--own]

It takes a C++ compiler (g++ or clang++) and CMake 3.20 or later. `--folder` keeps the build tree, so that a second build
compiles what has changed alone. `--own` builds the object for this processor's best instruction set, not one for each.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import jax

from trajopt.errors import TrajoptError
from trajopt.native import FOLDER, INSTRUCTION_SETS, SOURCES, processor_flags

INSTALL = {
    "cmake": "pip install cmake ninja, or apt-get install cmake",
    "a C++ compiler": "apt-get install g++, or set CXX",
}


def build(folder: pathlib.Path, jobs: int, own: bool = False) -> None:
    """Configure and build in `folder`; the shared objects go where `trajopt.native` looks for them.

    own: only the one for this processor's best instruction set.

    Raises `TrajoptError` where a tool is missing or the build fails, with what it printed.
    """
    # The environment's own CMake and Ninja come first, also where the environment is not activated.
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        raise _missing("cmake")
    if "CXX" not in os.environ and not any(shutil.which(name, path=path) for name in ("c++", "g++", "clang++")):
        raise _missing("a C++ compiler")
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
    if (folder / "CMakeCache.txt").exists():
        generator = []  # the one that the folder was made with
    able = (isa for isa, needed in INSTRUCTION_SETS.items() if processor_flags().issuperset(needed))
    sets = next(able, "") if own else ""  # the fastest first; none: every one
    options = [f"-DXLA_INCLUDE={jax.ffi.include_dir()}", f"-DTRAJOPT_OUTPUT={FOLDER}", f"-DTRAJOPT_SETS={sets}"]
    for command in (
        [cmake, "-S", str(SOURCES), "-B", str(folder), *generator, *options],
        [cmake, "--build", str(folder), "--parallel", str(jobs)],
    ):
        done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        if done.returncode:
            raise TrajoptError(f"the compiled core cannot be built: {' '.join(command)}\n{done.stdout}{done.stderr}")


def _missing(tool: str) -> TrajoptError:
    return TrajoptError(f"the compiled core cannot be built: {tool} is missing; {INSTALL[tool]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trajopt.native.build", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="build tree to keep (default: one that is removed afterwards)")
    parser.add_argument("--jobs", type=int, default=2, help="files compiled at a time")
    parser.add_argument("--own", action="store_true", help="only this processor's best instruction set")
    arguments = parser.parse_args()
    try:
        if arguments.folder is not None:
            build(arguments.folder, arguments.jobs, arguments.own)
        else:
            with tempfile.TemporaryDirectory() as folder:
                build(pathlib.Path(folder), arguments.jobs, arguments.own)
    except TrajoptError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"the compiled core is in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
