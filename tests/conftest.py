"""Shared set-up of the tests: float64, strict promotion, a persistent compilation cache, runtime shape checking.

The configuration is made here because the package itself never changes JAX's global configuration.
"""

from __future__ import annotations

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("MPLBACKEND", "Agg")

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

if os.environ.get("TRAJOPT_SHAPE_CHECKS", "1") != "0":
    # Functions accept NumPy arrays wherever they accept JAX's; the annotation `Array` of the package means both here.
    jaxtyping.Array = jax.Array | np.ndarray
    jaxtyping.install_import_hook("trajopt", "shape_checking.check")
