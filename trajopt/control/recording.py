"""What a receding horizon did: the motion of the plant, and for each solve what it took and found."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class Recording:
    """A run of `RecedingHorizon`.

    Of the plant, N ticks: `t` (N+1,) s, states `xs` (N+1, nx), controls `us` (N, nu). Of the S solves: `solve_time`
    (S,) s, when the state was measured; `latency` (S,) s, how long solving took, and `processor` (S,) s, what of it
    this process had (less on a machine that does other work too, more where several threads work); `iterations` (S,);
    `accepted` (S,), whether an iteration improved the plan; `cost_before` and `cost` (S,), of the shifted plan from the
    measured state and of the new plan. `period` (s): what a solve had. `first_iterations`, `first_time_s`: of the first
    plan, made before the clock started; `compile_time_s`: what was compiled for it.
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
        """All fields as a NumPy archive (.npz)."""
        fields: dict[str, Any] = {f.name: np.asarray(getattr(self, f.name)) for f in dataclasses.fields(self)}
        np.savez_compressed(os.fspath(path), **fields)
