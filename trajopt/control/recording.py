"""What a receding horizon did: the motion of the plant, and for each solve what it took and found."""

import dataclasses
import os
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from trajopt import files


@dataclasses.dataclass(frozen=True)
class Recording:
    """A run of `RecedingHorizon`: N ticks of the plant and S solves.

    Attributes:
        t (s): times of the plant, (N+1,).
        xs: states of the plant, (N+1, nx).
        us: controls of the plant, (N, nu).
        solve_time (s): when the state was measured from which a solve started, (S,).
        latency (s): how long solving took, (S,).
        processor (s): how much of it this process had the processor, (S,): less on a machine that does other work too, more
            where several threads work.
        iterations: of each solve, (S,).
        accepted: whether an iteration improved the plan, or nothing could, (S,).
        cost_before: cost of the shifted plan from the measured state, (S,).
        cost: cost of the new plan, (S,).
        violation: largest violation of each constraint row along the new plan, (S, r).
        period (s): time that a solve had.
        first_iterations: of the first plan, made before the clock started.
        first_time_s (s): time that the first plan took.
        compile_time_s (s): time that compiling took.
    """

    t: Float[np.ndarray, " N1"]
    xs: Float[np.ndarray, "N1 nx"]
    us: Float[np.ndarray, "N nu"]
    solve_time: Float[np.ndarray, " S"]
    latency: Float[np.ndarray, " S"]
    processor: Float[np.ndarray, " S"]
    iterations: Int[np.ndarray, " S"]
    accepted: Bool[np.ndarray, " S"]
    cost_before: Float[np.ndarray, " S"]
    cost: Float[np.ndarray, " S"]
    violation: Float[np.ndarray, "S r"]
    period: float
    first_iterations: int
    first_time_s: float
    compile_time_s: float

    @property
    def late(self) -> Bool[np.ndarray, " S"]:
        """Whether a solve took longer than its period."""
        return self.latency > self.period

    @property
    def solves_per_second(self) -> float:
        """Of the median solve, were the processor given to it alone."""
        return float(1.0 / np.median(self.latency)) if self.latency.size else float("nan")

    def summary(self) -> dict[str, float]:
        """Numbers of the run: solves, latency (s) at the median, the 99th percentile and the largest, the processor's,
        the shares of late and of rejected solves, the mean cost of the plans."""
        if not self.latency.size:
            return {"solves": 0.0}
        return {
            "solves": float(self.latency.size),
            "latency_median": float(np.median(self.latency)),
            "latency_99": float(np.percentile(self.latency, 99)),
            "latency_largest": float(self.latency.max()),
            "processor_median": float(np.median(self.processor)),
            "processor_99": float(np.percentile(self.processor, 99)),
            "late_share": float(self.late.mean()),
            "rejected_share": float(1.0 - self.accepted.mean()),
            "mean_cost": float(self.cost.mean()),
        }

    def save(self, path: str | os.PathLike) -> None:
        """All fields as a NumPy archive; .npz is added to a path that does not end so."""
        fields: dict[str, Any] = {f.name: np.asarray(getattr(self, f.name)) for f in dataclasses.fields(self)}
        name = os.fspath(path)
        files.write_arrays(name if name.endswith(".npz") else f"{name}.npz", fields, compressed=True)
