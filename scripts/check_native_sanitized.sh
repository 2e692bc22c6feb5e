#!/usr/bin/env bash
# Random steps and Jacobians of the compiled core under the address and undefined-behaviour sanitizers: any finding ends the run.
#   bash scripts/check_native_sanitized.sh [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-}"
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
folder=build/native-sanitize
mkdir -p "$folder"
models=(cube half-cheetah go1 atlas)
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" JAX_PLATFORMS=cpu "$python" tests/native/sanitized_cases.py "$folder" "${models[@]}"
for architecture in x86-64-v3 x86-64-v4; do
  "${CXX:-g++}" -std=c++20 -O1 -g -march="$architecture" -ffp-contract=fast -Wall -Wextra -Werror -fsanitize=address,undefined \
    -fno-sanitize-recover=undefined -Itrajopt/native tests/native/sanitized.cc -o "$folder/$architecture"
  if [ "$architecture" = x86-64-v4 ] && ! grep -qw avx512vl /proc/cpuinfo; then continue; fi
  for model in "${models[@]}"; do
    echo -n "$architecture $model: "
    "$folder/$architecture" "$folder/$model.case" "${1:-1000}"
  done
done
