"""Motions in a web browser: a server with a time slider, or one HTML file that needs neither server nor network.

Drawing, transport and the page are viser's (the `viewer` extra); `stage` says what is drawn.
"""

import contextlib
import importlib.util
import io
import os
import pathlib
import sys
import time
import webbrowser
from collections.abc import Sequence
from typing import Any

import numpy as np

from trajopt import files
from trajopt.errors import MissingExtraError, OptionError
from trajopt.viz.animation import subsample
from trajopt.viz.recording import Recording
from trajopt.viz.stage import Stage

MOST_FRAMES = 300  # of an exported file
PORT = 8080
_TICK_S = 1 / 30


def view(
    recordings: Sequence[Recording], *, port: int = PORT, browser: bool = True, overlay: bool = False, say: Any = print
) -> None:
    """Show recordings in the browser until interrupted (`KeyboardInterrupt` is raised on, after the server has ended).

    port: the first one tried; the next free one is taken. overlay: all at the same place, translucent, instead of side by
    side. The server listens on this machine only. Raises `MissingExtraError` without viser.
    """
    server = start_server(port)
    try:
        stage = Stage(server, recordings, overlay)
        panel = _Panel(server, stage)
        address = f"http://localhost:{server.get_port()}"
        say(f"{address}  (Ctrl-C ends it)")
        sys.stdout.flush()  # into a pipe too
        if browser:
            webbrowser.open(address)
        while True:
            panel.tick()
            time.sleep(_TICK_S)
    finally:
        with _quiet():
            server.stop()


def export(recordings: Sequence[Recording], path: str | os.PathLike, *, overlay: bool = False) -> pathlib.Path:
    """Write recordings as one HTML file with playback, which opens without a server and without a network.

    At most `MOST_FRAMES` moments are kept. Raises `MissingExtraError` without viser, `OptionError` for a path without
    folder.
    """
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise OptionError(f"cannot write '{path}': there is no folder '{path.parent}'; create it first")
    if path.is_dir():
        raise OptionError(f"cannot write '{path}': it is a folder; give the name of a file, such as {path / 'motion.html'}")
    server = start_server(PORT)
    try:
        stage = Stage(server, recordings, overlay)
        recorder = server.get_scene_serializer()
        times = stage.times[subsample(len(stage.times), MOST_FRAMES)]
        pause = stage.slowdown * np.diff(times, append=times[-1])
        for moment, seconds in zip(times, pause):
            stage.show(float(moment))
            recorder.insert_sleep(float(seconds))
        page = recorder.as_html()
    finally:
        with _quiet():
            server.stop()
    files.write_text(path, _with_legend(page, stage.legend(recorded=True)))
    return path


def _quiet() -> contextlib.redirect_stdout:
    """A context in which viser prints nothing about its server: a line of ours says where it is."""
    return contextlib.redirect_stdout(io.StringIO())


def check_extra() -> None:
    """Raise `MissingExtraError`, with the line to install it, when viser is missing."""
    if importlib.util.find_spec("viser") is None:
        raise MissingExtraError("the viewer needs viser; install it with: pip install 'trajopt-contact[viewer]'")


def start_server(port: int) -> Any:
    """A server of scenes without anything in it."""
    check_extra()
    import viser

    with _quiet():
        server = viser.ViserServer(host="127.0.0.1", port=port, label="trajopt", verbose=False)
    server.gui.configure_theme(show_logo=False, show_share_button=False)
    return server


class _Panel:
    """The controls beside the scene. Nothing runs in their callbacks: `tick` looks at them."""

    def __init__(self, server: Any, stage: Stage) -> None:
        gui, times = server.gui, stage.times
        self.stage, self.playing, self.last = stage, len(times) > 2, time.monotonic()
        gui.add_html(f'<div style="padding:0 1em 0.8em;font-size:0.875em;line-height:1.5">{stage.legend()}</div>')
        step = max(float(np.min(np.diff(times))), 1e-6) if len(times) > 1 else 1.0
        first, last = float(times[0]), float(times[-1])
        self.slider = gui.add_slider(
            "time [s]", first, last if last > first else first + step, step, first, disabled=last <= first
        )
        self.button = gui.add_button("Pause" if self.playing else "Play", disabled=last <= first)
        self.speed = gui.add_slider("speed", 0.01, 2.0, 0.01, round(max(1 / stage.slowdown, 0.01), 2))
        self.forces = gui.add_checkbox("contact forces", True, visible=any(a.arrows is not None for a in stage.actors))
        self.shown = [gui.add_checkbox(a.recording.name, True, visible=len(stage.actors) > 1) for a in stage.actors]
        self.button.on_click(lambda _: self.toggle())

    def toggle(self) -> None:
        self.playing = not self.playing
        self.button.label = "Pause" if self.playing else "Play"

    def tick(self) -> None:
        """Follow the controls, and the clock while playing."""
        now, self.last = time.monotonic(), self.last
        passed, self.last = now - self.last, now
        first, last = float(self.stage.times[0]), float(self.stage.times[-1])
        if self.playing and last > first:
            ahead = self.slider.value + passed * self.speed.value
            self.slider.value = round(ahead, 4) if ahead <= last else first
        self.stage.show_forces(self.forces.value)
        for actor, shown in zip(self.stage.actors, self.shown):
            if actor.root.visible != shown.value:
                actor.root.visible = shown.value
        self.stage.show(float(self.slider.value))


def _with_legend(page: str, legend: str) -> str:
    """The page with the legend in its corner and a title of its own."""
    style = (
        "position:fixed;left:1em;bottom:4em;z-index:5;max-width:32em;padding:0.6em 0.9em;background:rgba(255,255,255,0.85);"
        "border-radius:0.4em;font:14px/1.5 system-ui,sans-serif;color:#222;pointer-events:none"
    )
    end = page.rindex("</body>")
    page = f'{page[:end]}<div id="trajopt-legend" style="{style}">{legend}</div>{page[end:]}'
    start, stop = page.find("<title>"), page.find("</title>")
    return page if start < 0 or stop < 0 else f"{page[:start]}<title>trajopt{page[stop:]}"

