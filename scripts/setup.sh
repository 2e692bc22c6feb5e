#!/usr/bin/env bash
# Set up everything trajopt needs on a Debian/Ubuntu or macOS machine: the system's IPOPT library and a compiler,
# a virtual environment in .venv, the package with its extras, the compiled core. Safe to run again: work that is done is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }

hash_of() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi | cut -c1-16 | tr -d '\n'; }

stamp=".venv/.stamp-$(cat pyproject.toml scripts/setup.sh scripts/build_native.sh trajopt/native/*.h trajopt/native/*.cc \
  trajopt/native/CMakeLists.txt trajopt/native/exported.map trajopt/native/build.py | hash_of)"
if [ -e "$stamp" ] && [ -x .venv/bin/python ]; then exit 0; fi

# --- system packages ------------------------------------------------------------------------------------------------

python_of() { # the first Python >= 3.11 with a working venv module
  local name
  for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$name" ] && command -v "$name" >/dev/null \
      && "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

have_compiler() { command -v c++ >/dev/null || command -v g++ >/dev/null; }
have_ipopt() { # the headers, and the LAPACK and BLAS libraries that the Debian package asks the linker for
  command -v pkg-config >/dev/null && pkg-config --exists ipopt && have_compiler \
    && { [ "$(uname)" != Linux ] || echo 'int main(void) { return 0; }' \
         | c++ -x c++ - -llapack -lblas -o /dev/null 2>/dev/null; }
}

install_debian() {
  local packages=() run
  have_ipopt || packages+=(coinor-libipopt-dev liblapack-dev libblas-dev pkg-config g++)
  python_of >/dev/null || packages+=(python3 python3-venv python3-dev)
  if [ -x "$(command -v python3)" ] && ! python3 -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null; then
    packages+=(python3-dev)
  fi
  [ ${#packages[@]} -gt 0 ] || return 0
  run="apt-get install -y --no-install-recommends ${packages[*]}"
  if [ "$(id -u)" = 0 ]; then
    say "installing system packages: ${packages[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $run >/dev/null; } || say "apt-get failed; going on without"
  elif [ -t 0 ] && command -v sudo >/dev/null; then
    read -r -p "setup: run 'sudo $run'? [y/N] " answer
    case "$answer" in
      y | Y | yes) sudo apt-get update -qq && sudo $run || say "apt-get failed; going on without" ;;
      *) say "going on without" ;;
    esac
  else
    say "system packages are missing; type: sudo $run"
  fi
}

install_macos() {
  have_ipopt && return 0
  if command -v brew >/dev/null; then
    say "installing ipopt and pkg-config with Homebrew"
    brew install ipopt pkg-config || say "brew failed; going on without"
  else
    say "Homebrew is missing (https://brew.sh); with it, type: brew install ipopt pkg-config"
  fi
}

if command -v apt-get >/dev/null; then
  install_debian
elif [ "$(uname)" = Darwin ]; then
  install_macos
fi

# --- virtual environment --------------------------------------------------------------------------------------------

if ! [ -x .venv/bin/python ]; then
  python="$(python_of)" || { say "no Python >= 3.11 with venv found; install one, or set PYTHON=/path/to/python"; exit 1; }
  say "creating .venv with $python"
  "$python" -m venv .venv
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
pip_install() { .venv/bin/python -m pip install -q "$@"; }
say "installing trajopt with its extras (a few minutes the first time)"
# The package and what builds it come first, without an environment of its own for the build, which would install JAX once more.
# pip 22 has no -C; the core is built below, by parts: what does not change is not compiled again.
pip_install cmake ninja "scikit-build-core>=0.11"
pip_install --no-build-isolation --config-settings wheel.cmake=false -e .

# The core is compiled while the extras are installed, for this processor alone: `make native` builds every instruction set.
core=""
if [ "$(uname -s)" = Linux ] && have_compiler; then
  PATH="$PWD/.venv/bin:$PATH" PYTHON=.venv/bin/python scripts/build_native.sh --own >.venv/native.log 2>&1 &
  core=$!
fi

pip_install "trajopt-contact[dev,robots,mesh,bench,viewer,docs,distributed,learning,jaxopt]"  # the one that is installed
if .venv/bin/python -c 'import cyipopt' 2>/dev/null; then
  :
elif have_ipopt && pip_install "trajopt-contact[ipopt]" >.venv/ipopt.log 2>&1; then
  :
else
  say "IPOPT is not available; everything but the solvers built on it works (details: .venv/ipopt.log)"
fi

if [ "$(uname -s)" != Linux ]; then
  say "the compiled core is for Linux; steps are taken by JAX here"
elif [ -n "$core" ] && wait "$core"; then
  say "compiled core built"
else
  say "the compiled core could not be built; steps are taken by JAX, ten to a hundred times slower (details: .venv/native.log)"
fi

rm -f .venv/.stamp-*
touch "$stamp"
say "ready"
