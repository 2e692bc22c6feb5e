# Every target sets up what it needs by itself: the system's IPOPT library, a virtual environment, the package with
# its extras. The set-up is stamped with a hash of pyproject.toml, so that a second run starts at once and offline.

SHELL := /bin/bash
BIN := .venv/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
PYTEST_WORKERS ?= 2
# A file's tests share compiled functions, so they stay together; the files that take longest start first (conftest.py).
PYTEST := $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test test-all lint bench docs docs-site clean

help:
	@echo "make demo      solve go1-stand and cube-initial-velocity, print a table, leave the plots in runs/demo"
	@echo "make test      lint, types and the quick tests"
	@echo "make test-all  the slow tests too, compiled with all optimisations"
	@echo "make lint      ruff and mypy"
	@echo "make bench     the benchmarks"
	@echo "make docs      run every example of the documentation, then build the site"
	@echo "make docs-site build the documentation site in site/"
	@echo "make clean     remove the virtual environment and the caches"

setup:
	@scripts/setup.sh

demo: setup
	@$(BIN)/python benchmarks/demo.py --out runs/demo

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy

test: lint
	@$(PYTEST)

test-all: lint
	@TRAJOPT_QUICK_COMPILATION=0 $(PYTEST) -m "slow or not slow"

bench: setup
	@set -e; for file in benchmarks/bench_*.py; do if [ -e "$$file" ]; then $(BIN)/python "$$file"; fi; done

docs: setup
	@$(BIN)/python -m pytest -q tests/test_docs.py
	@$(MAKE) --no-print-directory docs-site

docs-site: setup
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d .cache/doctrees docs site
	@echo "open site/index.html"

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache site
