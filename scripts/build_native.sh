#!/usr/bin/env bash
# Build the compiled core of this checkout into trajopt/native/_build, against the XLA headers of the Python in use; what has not
# changed since the last build is not compiled again.
#   bash scripts/build_native.sh [--own]      --own: for this processor's best instruction set alone
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-}"
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" JAX_PLATFORMS=cpu "$python" -m trajopt.native.build --folder build/native \
  --jobs "${JOBS:-2}" "$@"
