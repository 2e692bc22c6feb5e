"""Experiments with a known outcome, one module for each kind: `python benchmarks/validation.py` runs them."""
