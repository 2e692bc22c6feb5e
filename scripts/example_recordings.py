"""Write the recordings that ship with `trajopt.estimation.examples`: `python scripts/example_recordings.py`, from the
repository's root.
"""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)

from trajopt.estimation import examples  # noqa: E402

SHIPPED = ("sliding-box",)

if __name__ == "__main__":
    examples.FOLDER.mkdir(exist_ok=True)
    for name in SHIPPED:
        for recording in examples.simulate(name, 0).recordings:
            recording.save(examples.FOLDER / f"{name}-{recording.name}.npz")
