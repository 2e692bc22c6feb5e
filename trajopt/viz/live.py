"""A receding horizon at work in the web browser, in real time: robot, plan as a ghost, latency, sliders, a button that pushes.

The plant's clock follows the wall's: what has passed since the last look is made up for by ticks of the plant, in which a plan
acts when its solve is done (delay="measured") or after the horizon's delay. Where solves take longer than real time the motion
is slower, and the panel says so.
"""

import contextlib
import io
import sys
import time
import webbrowser
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.control.plants import Push
from trajopt.control.receding_horizon import Drive
from trajopt.control.tasks import SCALES, Slider, Task
from trajopt.errors import NonFiniteError, OptionError, UnknownNameError
from trajopt.names import closest
from trajopt.problems.residuals.base import labels_of
from trajopt.problems.trajectory import TASKS as FUNCTIONS
from trajopt.viz.recording import Recording
from trajopt.viz.shapes3d import placements
from trajopt.viz.stage import Stage
from trajopt.viz.viewer import PORT, start_server

FRAME_S = 1 / 30  # between two drawings
SHOWN = 200  # solves of the latency plot
MOST_BEHIND_S = 0.2  # of real time that is made up for; what is more is lost
PUSH_S = 0.1


class Live:
    """A task that runs and can be changed while it does.

    Options:
        task: a `control.tasks.Task`.
        solver: name of another solver; default: the task's own.
        plant: "mujoco" or "system".
        port: the first one tried.

    Attributes:
        drive: the run (`control.receding_horizon.Drive`); address: where it is shown.
    """

    def __init__(self, task: Task, *, solver: str | None = None, plant: str = "mujoco", port: int = PORT) -> None:
        self.task = task
        self.horizon = task.horizon(solver=solver, plant=plant)
        self.server = start_server(port)
        self.address = f"http://localhost:{self.server.get_port()}"
        self.start = np.asarray(self.horizon.problem.x0)
        system = self.horizon.problem.system
        assert system is not None  # every task has one
        self.model, nq = system.model, system.nq
        none = np.zeros((1, 0, 3))
        names = ("robot", "plan")
        shown = [Recording(name, self.model, np.zeros(1), self.start[None, :nq], none, none) for name in names]
        self.stage = Stage(self.server, shown, overlay=True)
        self.drive = self._begun()
        self.pending: dict[str, float] = {}  # sliders that were moved since the last look
        self.requests: list[str] = []  # of buttons
        self._add_panel()

    def _begun(self) -> Drive:
        self.horizon.plant.reset(self.start)
        return Drive(self.horizon, self.horizon.controller.first_plan(self.start))

    # -- the panel: callbacks only note what was asked for --------------------------------------------------------------------

    def _add_panel(self) -> None:
        import viser.uplot as uplot

        gui = self.server.gui
        self.says = gui.add_markdown("")
        blank = (np.arange(2.0), np.zeros(2), np.full(2, 1e3 * self.horizon.period))
        series = (
            uplot.Series(label="t [s]"), uplot.Series(label="latency [ms]", stroke="#2f6db3", width=1),
            uplot.Series(label="period [ms]", stroke="#888888", width=1),
        )  # fmt: skip
        self.plot = gui.add_uplot(blank, series, title="latency of each solve", aspect=1.8)
        push, reset = gui.add_button("Push"), gui.add_button("Start again")
        push.on_click(lambda _: self.requests.append("push"))
        reset.on_click(lambda _: self.requests.append("reset"))
        self.sliders: dict[str, Any] = {}
        for slider in self.task.sliders:
            first = float(self._reference(slider)[slider.place])
            step = (slider.largest - slider.least) / 200
            name = f"{slider.name} [{slider.unit}]"
            self._add_slider(slider.name, name, (slider.least, slider.largest, step, first))
        for label in sorted(set(labels_of([getattr(self.horizon.problem, key) for key in FUNCTIONS]))):
            self._add_slider(f"weight of {label}", f"weight of {label}, times", (*SCALES, 0.1, 1.0))

    def _add_slider(self, key: str, label: str, numbers: tuple[float, float, float, float]) -> None:
        made = self.server.gui.add_slider(label, *numbers)
        made.on_update(lambda event: self.pending.update({key: float(event.target.value)}))
        self.sliders[key] = made

    def _terms(self, label: str) -> list[Any]:
        problem = self.horizon.problem
        tasks = [getattr(problem, key) for key in FUNCTIONS if set(labels_of([getattr(problem, key)]))]
        return [term for one in tasks for term in one.terms if term.label == label]

    def _reference(self, slider: Slider) -> Float[np.ndarray, " m"]:
        reference = np.array(self._terms(slider.term)[0].reference)
        return reference if reference.ndim == 1 else reference[-1]

    # -- what may be asked for -------------------------------------------------------------------------------------------------

    def set(self, name: str, value: float) -> None:
        """Move a slider: an entry of a reference by its name, or "weight of TERM". Raises `UnknownNameError`, `OptionError` for
        a value outside its range; nothing changes then."""
        if name not in self.sliders:
            raise UnknownNameError(f"there is no slider '{name}'{closest(name, self.sliders)}")
        least, largest = self.sliders[name].min, self.sliders[name].max
        if not least <= value <= largest:
            raise OptionError(f"slider '{name}': {value:g} is outside its range of {least:g} to {largest:g}")
        self.sliders[name].value = value
        self.pending[name] = float(value)

    def push(self) -> None:
        """Push the task's body for 0.1 s, horizontally, in a direction that turns from push to push."""
        angle = 2.4 * sum(isinstance(push, Push) for push in self.drive.pushes)
        force = self.task.force * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.drive.pushes.append(Push(self.task.pushed, force, self.drive.time, PUSH_S))

    def _apply(self) -> None:
        """Do what was asked for since the last look."""
        while self.requests:
            if self.requests.pop(0) == "push":
                self.push()
            else:
                self.drive = self._begun()
        moved, self.pending = self.pending, {}
        references: dict[str, Any] = {}
        for slider in self.task.sliders:
            if slider.name in moved:
                reference = references.get(slider.term, self._reference(slider))
                reference[slider.place] = moved[slider.name]
                references[slider.term] = reference
        if references:
            self.horizon.set(references=references)
        for name, scale in moved.items():
            if name.startswith("weight of "):
                self._scale(name.removeprefix("weight of "), scale)

    def _scale(self, label: str, scale: float) -> None:
        """Weigh a term so many times what the task says, at the stages; at the end alike where it has the same weight."""
        first = self.task.problem()
        tasks = [getattr(first, key) for key in FUNCTIONS if set(labels_of([getattr(first, key)]))]
        weight = next(term.weight for one in tasks for term in one.terms if term.label == label)
        self.horizon.set(weights={label: scale * np.asarray(weight)})

    # -- the clock -------------------------------------------------------------------------------------------------------------

    def run(self, seconds: float | None = None) -> None:
        """Run in real time for so many seconds, None: until interrupted."""
        begin = last = time.perf_counter()
        while seconds is None or last - begin < seconds:
            now = time.perf_counter()
            self.advance(min(now - last, MOST_BEHIND_S))
            last = now
            spare = FRAME_S - (time.perf_counter() - now)
            if spare > 0:
                time.sleep(spare)

    def advance(self, seconds: float) -> None:
        """Let so much time of the plant pass, and draw. A plant whose state is not finite starts again."""
        self._apply()
        until, begin = self.drive.time + seconds, time.perf_counter()
        try:
            while self.drive.time < until:
                plant = self.horizon.plant
                if not np.isfinite(np.asarray(plant.state)).all():  # there is nothing to look at while the last plan goes on
                    raise NonFiniteError(f"{plant.name}: the measured state is not finite at {self.drive.time:.6g} s")
                self.drive.tick()
        except NonFiniteError as error:
            self.says.content = f"{error}; started again"
            self.drive = self._begun()
            return
        self._draw(seconds / max(time.perf_counter() - begin, 1e-9))

    def _draw(self, pace: float) -> None:
        """Robot, plan and latency."""
        drive, nq = self.drive, self.model.nq
        q = np.stack([np.asarray(drive.xs[-1])[:nq], np.asarray(drive.acting.plan.xs)[-1, :nq]])
        rotation, position = placements(self.model, q)
        solves = drive.solves[-SHOWN:]
        with self.server.atomic():
            for k in range(2):
                self.stage.place(k, rotation[k], position[k])
            if len(solves) > 1:
                times, taken = (np.array([row[k] for row in solves]) for k in (0, 1))
                self.plot.data = (times, 1e3 * taken, np.full(len(times), 1e3 * self.horizon.period))
        latency = 1e3 * float(np.median([row[1] for row in solves])) if solves else 0.0
        slow = "" if pace >= 1 else f", {pace:.0%} of real time"
        self.says.content = f"{self.task.summary}: t = {drive.time:.1f} s, {latency:.1f} ms a solve{slow}"

    def close(self) -> None:
        """End the server."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()


def show(
    task: Task, *, solver: str | None = None, plant: str = "mujoco", port: int = PORT, browser: bool = True,
    seconds: float | None = None, say: Any = print,
) -> Drive:  # fmt: skip
    """Run a task in the browser for so many seconds, None: until interrupted. Returns the run. Raises `MissingExtraError`
    without viser."""
    live = Live(task, solver=solver, plant=plant, port=port)
    try:
        say(f"{live.address}  (Ctrl-C ends it)")
        sys.stdout.flush()  # into a pipe too
        if browser:
            webbrowser.open(live.address)
        with contextlib.suppress(KeyboardInterrupt):
            live.run(seconds)
    finally:
        live.close()
    return live.drive
