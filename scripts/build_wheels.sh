#!/usr/bin/env bash
# Wheels and source distribution of trajopt-contact in dist/, checked: py3-none-manylinux for x86-64 and, where its cross compiler
# is there, for aarch64.
#   bash scripts/build_wheels.sh [x86_64] [aarch64] [sdist]      all of them by default
# The manylinux tag follows from the C library that the objects were linked against: in the image of .github/workflows/release.yml it is
# an old one, on a machine of today that machine's.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'wheels: %s\n' "$*"; }
python="${PYTHON:-python3}"
wanted=("$@")
[ $# -gt 0 ] || wanted=(x86_64 aarch64 sdist)
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
# JAX's headers and scikit-build-core come from this environment, so that compilations are found in a compiler's cache again.
make_wheel() {
  "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$folder/raw" -C build-dir="build/wheel-$what" \
    -C cmake.define.XLA_INCLUDE="$("$python" -c 'import jax; print(jax.ffi.include_dir())')" "$@" .
}

for what in "${wanted[@]}"; do
  case "$what" in
    x86_64)
      say "x86-64"
      make_wheel
      "$python" -m auditwheel repair --plat auto -w dist "$folder"/raw/*linux_x86_64.whl
      rm "$folder"/raw/*
      ;;
    aarch64)
      if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
        say "aarch64 is left out: there is no cross compiler (apt-get install g++-aarch64-linux-gnu)"
        continue
      fi
      say "aarch64, cross-compiled"
      _PYTHON_HOST_PLATFORM=linux-aarch64 make_wheel -C cmake.define.CMAKE_SYSTEM_NAME=Linux \
        -C cmake.define.CMAKE_SYSTEM_PROCESSOR=aarch64 -C cmake.define.CMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
      "$python" -m auditwheel repair --plat auto -w dist "$folder"/raw/*linux_aarch64.whl
      rm "$folder"/raw/*
      ;;
    sdist)
      say "source distribution"
      "$python" -m build -q --sdist --no-isolation -o dist .
      ;;
    *) say "'$what' is none of x86_64, aarch64, sdist"; exit 2 ;;
  esac
done
"$python" -m twine check --strict dist/trajopt_contact-*
ls -l dist
