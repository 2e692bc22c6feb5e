#!/usr/bin/env bash
# The compiled core under the sanitizers of addresses, undefined behaviour and threads: random steps and Jacobians, NaN among them, of each
# instruction set, then the handlers as XLA calls them: steps, Jacobians, rollouts, batches. Any finding ends the run.
#   bash scripts/check_native_sanitized.sh [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-}"
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
folder=build/native-sanitize
mkdir -p "$folder"
models=(cube half-cheetah go1 h1 atlas)  # contacts of H1 contradict each other where it stands
# Closed loops of tests/dynamics/linkages.py; all shapes against each other; boxes on each other; contacts that hardly contradict each
# other; smoothed contact; free motion, by Runge-Kutta too.
scenes=(THREE MIXED SPATIAL HEAP PILE FEET go1-smoothed half-cheetah-smoothed go1-free HEAP-free)
compiling=()
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" JAX_PLATFORMS=cpu "$python" tests/native/sanitized_cases.py "$folder" "${models[@]}" "${scenes[@]}"
for architecture in x86-64-v3 x86-64-v4; do
  "${CXX:-g++}" -std=c++20 -O1 -g -march="$architecture" -ffp-contract=fast -Wall -Wextra -Werror -fsanitize=address,undefined \
    -fno-sanitize-recover=undefined -Itrajopt/native tests/native/sanitized.cc trajopt/native/shape_pairs.cc -o "$folder/$architecture"
  if [ "$architecture" = x86-64-v4 ] && ! grep -qw avx512vl /proc/cpuinfo; then continue; fi
  for model in "${models[@]}" "${scenes[@]}"; do
    echo -n "$architecture $model: "
    "$folder/$architecture" "$folder/$model.case" "${1:-1000}"
  done
done

# Threads that step one model at once, as a batch does. XLA's own locks are not compiled for it, so that it is for the core alone.
"${CXX:-g++}" -std=c++20 -O1 -g -march=x86-64-v3 -ffp-contract=fast -Wall -Wextra -Werror -fsanitize=thread -Itrajopt/native \
  tests/native/sanitized.cc trajopt/native/shape_pairs.cc -o "$folder/threads"
for model in "${models[@]}" "${scenes[@]}"; do
  echo "threads $model:"
  TSAN_OPTIONS=halt_on_error=1 "$folder/threads" "$folder/$model.case" "$((${1:-1000} / 10))" 4
done

# The handlers, in Python: the libraries of the sanitizers have to be loaded first. Leaks are not looked for: Python's own are many.
mkdir -p "$folder/objects"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" JAX_PLATFORMS=cpu
include="$("$python" -c 'import jax; print(jax.ffi.include_dir())')"
sources=(core_ffi engine riccati_ffi shape_pairs solve_ffi)
"$python" trajopt/native/sources.py "$folder/fingerprint.cc"
for source in "${sources[@]}"; do
  "${CXX:-g++}" -std=c++20 -O1 -g1 -march=x86-64-v3 -ffp-contract=fast -fPIC -fvisibility=hidden -Wall -Wextra -Werror \
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -isystem "$include" -Itrajopt/native \
    -c "trajopt/native/$source.cc" -o "$folder/$source" &
  compiling+=($!)
done
for job in "${compiling[@]}"; do wait "$job"; done
"${CXX:-g++}" -shared -fPIC -fsanitize=address,undefined "${sources[@]/#/$folder/}" "$folder/fingerprint.cc" -o "$folder/objects/trajopt_native_avx2.so"
ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so) $("${CXX:-g++}" -print-file-name=libubsan.so)" \
  "$python" tests/native/sanitized_handlers.py "$folder/objects" "${models[@]}"
