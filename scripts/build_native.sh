#!/usr/bin/env bash
# Build the compiled core into trajopt/native/_build, against the XLA headers of the Python in use.
#   bash scripts/build_native.sh
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-}"
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
folder=build/native
options=()
command -v ninja >/dev/null && options+=(-G Ninja)
cmake -S trajopt/native -B "$folder" ${options[@]+"${options[@]}"} \
  "-DXLA_INCLUDE=$("$python" -c 'import jax; print(jax.ffi.include_dir())')" >/dev/null
cmake --build "$folder" --parallel "${JOBS:-2}"
