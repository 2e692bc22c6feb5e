#!/usr/bin/env bash
# Make a wheel and prove that it works: its content; no zmm register in the AVX2 object; steps by each instruction set in a fresh
# environment without a compiler; a pure wheel where no compiler works, which says so once; the core built into that installation.
#   bash scripts/check_wheel.sh [WHEEL]      takes some ten minutes on two cores; WHEEL: one that is there already
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'check_wheel: %s\n' "$*"; }
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
"${PYTHON:-python3}" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip -q "$@"; }
# Without a compiler: nothing of the system is in the path.
bare() { env -i "PATH=$folder/venv/bin" "HOME=$folder" "$@"; }
smoke() { (cd "$folder" && bare "$@" "$folder/venv/bin/python" "$OLDPWD/scripts/wheel_smoke.py" "$expected"); }

if [ $# -gt 0 ]; then
  wheel="$1"
else
  say "building the wheel"
  pip wheel --no-deps -w "$folder/dist" .
  wheel="$(ls "$folder"/dist/*.whl)"
fi
case "$wheel" in *py3-none-linux_x86_64.whl | *py3-none-manylinux*x86_64.whl) ;; *) say "$wheel is not one for this platform with the core in it"; exit 1 ;; esac

say "content of $(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"
"$folder/venv/bin/python" -m zipfile -e "$wheel" "$folder/content"
for file in native/_build/trajopt_native_avx2.so native/_build/trajopt_native_avx512.so native/core_ffi.cc native/step.h \
  native/CMakeLists.txt native/exported.map native/build.py models/bundled/go1.xml; do
  [ -s "$folder/content/trajopt/$file" ] || { say "$file is not in the wheel"; exit 1; }
done
odd="$(cd "$folder/content" && find . -type f | grep -Ev '^\./trajopt_contact-[^/]*\.dist-info/|^\./trajopt/.*\.(py|xml|h|cc|so|map|npz)$|py\.typed$|CMakeLists.txt$' || true)"
[ -z "$odd" ] || { say "not expected in the wheel: $odd"; exit 1; }
[ "$(du -k "$wheel" | cut -f1)" -lt 5120 ] || { say "the wheel is larger than 5 MiB"; exit 1; }

count_zmm() { objdump -d "$folder/content/trajopt/native/_build/trajopt_native_$1.so" | grep -c zmm || true; }
say "zmm registers: AVX2 $(count_zmm avx2), AVX-512 $(count_zmm avx512)"
[ "$(count_zmm avx2)" = 0 ] && [ "$(count_zmm avx512)" -gt 0 ] || exit 1

say "installing it with what it depends on into a fresh environment"
pip install "$wheel"
expected=native
smoke
smoke TRAJOPT_NATIVE_ISA=avx2

say "a wheel where the compiler fails"
CXX=/bin/false pip wheel --no-deps -w "$folder/pure" .
pure="$(ls "$folder"/pure/*.whl)"
case "$pure" in *py3-none-any.whl) ;; *) say "$pure is not pure"; exit 1 ;; esac
pip install --no-deps --force-reinstall "$pure"
expected=jax
smoke

say "the core built into that installation"
(cd "$folder" && "$folder/venv/bin/python" -m trajopt.native.build)
expected=native
smoke
say "all is well"
