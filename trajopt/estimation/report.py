"""The report of an identification: one HTML file with everything in it, for a reader who was not there."""

import html
import os
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from trajopt import files
from trajopt.estimation.identification import Identification, Prediction, predictions
from trajopt.estimation.recording import Recording
from trajopt.estimation.sensors import Pose, Sensor

SHOWN_RECORDINGS, SHOWN_ROWS = 3, 7  # whose fits are drawn: recordings, rows of each channel
MOST_POINTS = 400  # of a curve
WIDTH, HEIGHT, MARGIN = 420, 150, 46

HOW = {
    "gauss-newton": "Every sample of the recordings was fitted, by Gauss-Newton; each recording, or piece of one, has a first "
    "state of its own.",
    "staged": "The motions have impacts. What the motion before the first contact and the rest at the end show was fitted to "
    "these; what is left was found by predicting each recording from its first state to its end.",
}
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .25em .8em; text-align: right; border-bottom: 1px solid
#ddd; }
td:first-child, th:first-child { text-align: left; } .warning { background: #fff3d6; padding: .5em 1em; margin: .5em 0; }
figure { display: inline-block; margin: .4em; } figcaption { font-size: 13px; } svg text { font: 11px sans-serif; }
.small { color: #666; font-size: 14px; } .corr td { text-align: center; font-size: 12px; padding: .2em .4em; }
"""


def write_report(fit: Identification, path: str | os.PathLike, held_out: Sequence[Recording] = ()) -> None:
    """Write the report of `fit` to `path`: what was identified, intervals, what is not determined, fits with residuals, the
    prediction of recordings that were held out beside that of the model as it was, correlations, warnings."""
    model = fit.found.predictor.system.model
    parts = [
        f"<h1>Identification of {html.escape(model.name)}</h1>", _summary(fit), _warnings(fit), _values(fit), _lost(fit),
        _noise(fit), _fits(fit), _held_out(fit, held_out), _correlations(fit),
    ]  # fmt: skip
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Identification of {html.escape(model.name)}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    files.write_text(path, page)


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}"><tr>{cells}</tr>{body}</table>'


def _summary(fit: Identification) -> str:
    found = fit.found
    names = sorted({recording.name.split(", ")[0] for recording in found.recordings})
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    sensors = "; ".join(f"{type(s).__name__} '{s.channel}'" for s in found.predictor.sensors)
    lines = [
        _paragraph(
            f"{len(names)} recordings: {shown}. Sensors: {sensors}. Time step of the simulated motions: "
            f"{float(found.predictor.system.dt):.4g} s."
        ),
        _paragraph(f"{HOW[fit.method]} This way was chosen because: {fit.reason}."),
        "<ul>" + "".join(f"<li>{html.escape(stage)}</li>" for stage in fit.stages) + "</ul>",
    ]
    return "".join(lines)


def _warnings(fit: Identification) -> str:
    if not fit.warnings:
        return ""
    return "<h2>Warnings</h2>" + "".join(
        _paragraph(text[0].upper() + text[1:] + ".", "warning") for text in fit.warnings
    )


def _values(fit: Identification) -> str:
    start = np.asarray(fit.found.predictor.unknowns.values(jnp.asarray(fit.found.predictor.unknowns.start)))
    rows = []
    for label, before, value, (low, high) in zip(fit.labels, start, fit.values, fit.intervals):
        interval = "no interval" if np.isnan(low) else f"{low:.5g} to {high:.5g}"
        rows.append((label, f"{before:.5g}", f"{value:.5g}", interval))
    how = (
        "The intervals come from how the recordings differ from each other (sandwich covariance clustered by recording, "
        "Student's t)."
        if fit.found.clustered
        else "The intervals come from the noise that was stated for the sensors."
    )
    return (
        "<h2>What was identified</h2>"
        + _table(("", "before", "identified", "interval of 95 %"), rows)
        + _paragraph(how, "small")
    )


def _lost(fit: Identification) -> str:
    if not fit.undetermined:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in fit.undetermined)
    text = "Along these combinations the parameters change nothing in the recordings. They keep their first values."
    return f"<h2>What these recordings do not determine</h2>{_paragraph(text)}<ul>{items}</ul>"


def _noise(fit: Identification) -> str:
    rows = [(channel, f"{value:.3g}") for channel, value in fit.chi_squared.items()]
    worst = sorted(((v, n) for n, v in fit.recording_chi_squared.items() if np.isfinite(v)), reverse=True)[:8]
    of = "the samples before the first contact" if fit.method == "staged" else "all samples"
    text = f"Mean square of the residuals of {of}, in units of the noise: one where the noise is as stated."
    tables = _table(("channel", "mean square"), rows) + _table(
        ("recording", "mean square"), [(n, f"{v:.3g}") for v, n in worst]
    )
    return f"<h2>Is the noise as stated?</h2>{_paragraph(text)}{tables}"


def _fits(fit: Identification) -> str:
    found = fit.found
    few = list(range(min(SHOWN_RECORDINGS, len(found.recordings))))
    recordings, firsts = [found.recordings[k] for k in few], [found.firsts[k] for k in few]
    after = predictions(found.predictor, recordings, firsts, found.locals[few], found.theta)
    before = predictions(found.predictor, recordings, firsts, found.locals[few], found.predictor.unknowns.start)
    return (
        "<h2>Fits</h2>"
        + _paragraph(
            "Measured (dots), predicted with the identified model (blue) and with the model as it was (grey), from the same "
            "first state; below, the "
            "residuals: measured minus predicted."
        )
        + "".join(_figures(fit, recording, a, b) for recording, a, b in zip(recordings, after, before))
    )


def _figures(fit: Identification, recording: Recording, after: Prediction, before: Prediction) -> str:
    drawn = [f"<h3>{html.escape(recording.name)}</h3>"]
    for sensor in fit.found.predictor.measuring:
        if sensor.channel not in recording.channels:
            continue
        channel = recording[sensor.channel]
        for row, name in _rows(fit, sensor, channel.values.shape[1]):
            curves = [("#bbb", before.rows[sensor.channel][:, row]), ("#1f5fb4", after.rows[sensor.channel][:, row])]
            drawn.append(_plot(f"{sensor.channel}: {name}", channel.t, channel.values[:, row], curves))
        for k, name in enumerate(sensor.labels(fit.found.predictor.system.model)[:SHOWN_ROWS]):
            drawn.append(
                _plot(f"residual, {sensor.channel}: {name}", channel.t, after.errors[sensor.channel][:, k], [])
            )
    return "".join(drawn)


def _rows(fit: Identification, sensor: Sensor, width: int) -> list[tuple[int, str]]:
    labels = sensor.labels(fit.found.predictor.system.model)
    names = (
        (*labels[:3], "quaternion w", "quaternion x", "quaternion y", "quaternion z")
        if isinstance(sensor, Pose)
        else labels
    )
    return list(enumerate(names))[: min(SHOWN_ROWS, width)]


def _held_out(fit: Identification, recordings: Sequence[Recording]) -> str:
    if not recordings:
        return ""
    rows = []
    sets = {
        label: fit.predict(recordings, nominal=nominal)
        for label, nominal in (("identified", False), ("as it was", True))
    }
    for sensor in fit.found.predictor.measuring:
        labels = sensor.labels(fit.found.predictor.system.model)
        for block in sensor.quantities(fit.found.predictor.system.model):
            cells = [f"{sensor.channel}: {labels[block][0]}" + (" and its like" if len(labels[block]) > 1 else "")]
            for made in sets.values():
                means = [
                    np.nanmean(np.linalg.norm(p.errors[sensor.channel][:, block], axis=1))
                    for p in made
                    if sensor.channel in p.errors
                ]
                cells.append(f"{np.mean(means):.4g}" if means else "-")
            rows.append(cells)
    text = (
        f"Mean size of the error over {len(recordings)} recordings that were not used, predicted from their recorded first "
        "states to their ends."
    )
    return f"<h2>Recordings that were held out</h2>{_paragraph(text)}{_table(('', *sets), rows)}"


def _correlations(fit: Identification) -> str:
    known = np.flatnonzero(~np.isnan(fit.deviations))
    if known.size < 2:
        return ""
    C = fit.correlation
    head = "<tr><td></td>" + "".join(f"<td>{j + 1}</td>" for j in range(known.size)) + "</tr>"
    body = ""
    for i, k in enumerate(known):
        cells = "".join(f'<td style="background: {_shade(C[k, m])}">{C[k, m]:.2f}</td>' for m in known)
        body += f"<tr><td>{i + 1} {html.escape(fit.labels[k])}</td>{cells}</tr>"
    text = "Near 1 or -1: the recordings determine a combination of the two better than each of them."
    return f'<h2>Correlations of the estimates</h2>{_paragraph(text)}<table class="corr">{head}{body}</table>'


def _shade(value: float) -> str:
    share = min(1.0, abs(float(value)))
    return f"rgba({'31, 95, 180' if value > 0 else '190, 60, 40'}, {0.6 * share:.2f})"


def _plot(
    title: str, t: Float[np.ndarray, " n"], dots: Float[np.ndarray, " n"], curves: Sequence[tuple[str, np.ndarray]]
) -> str:
    """A figure in SVG: dots, and curves in their colours, over time."""
    values = np.concatenate([dots, *(curve for _, curve in curves)])
    values = values[np.isfinite(values)]
    if not values.size:
        return ""
    low, high = float(values.min()), float(values.max())
    low, high = (low - 1e-9, high + 1e-9) if high - low < 1e-12 else (low, high)
    begin, end = float(t[0]), float(max(t[-1], t[0] + 1e-9))

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + (WIDTH - MARGIN - 6) * (x - begin) / (end - begin), 8 + (HEIGHT - 30) * (high - y) / (
            high - low
        )

    some = np.unique(np.linspace(0, t.size - 1, min(MOST_POINTS, t.size)).astype(int))
    drawn = []
    for color, curve in curves:
        points = " ".join("{:.1f},{:.1f}".format(*place(t[k], curve[k])) for k in some if np.isfinite(curve[k]))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.4"/>')
    spots = [place(t[k], dots[k]) for k in some if np.isfinite(dots[k])]
    drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.1" fill="#222"/>' for x, y in spots]
    axis = [
        f'<text x="2" y="14">{high:.3g}</text><text x="2" y="{HEIGHT - 20}">{low:.3g}</text>',
        f'<text x="{MARGIN}" y="{HEIGHT - 4}">{begin:.3g} s</text><text x="{WIDTH - 50}" y="{HEIGHT - 4}">{end:.3g} s</text>',
        f'<rect x="{MARGIN}" y="8" width="{WIDTH - MARGIN - 6}" height="{HEIGHT - 30}" fill="none" stroke="#ccc"/>',
    ]
    picture = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(axis)}{"".join(drawn)}</svg>'
    return f"<figure>{picture}<figcaption>{html.escape(title)}</figcaption></figure>"
