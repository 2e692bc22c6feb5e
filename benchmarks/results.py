"""Measured figures that README and pages state: docs/results.json, which the benchmarks write and the pages are filled from.

    python benchmarks/results.py                    # what there is: each figure with its command, machine and commit
    python benchmarks/results.py run                # every command of COMMANDS; their figures are recorded, pages filled in
    python benchmarks/results.py run step called    # some of them
    python benchmarks/results.py pages              # the pages alone, from the figures that are recorded

A page takes a figure by `<!--=step-jacobian/go1/standing-->30<!--/-->`. It keeps the digits that stand there: 29.6 is written
as 30, 29.6 or 3e+01. A benchmark calls `record`, which does nothing unless it runs under `run`.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results.json"
RECORDING = "TRAJOPT_RECORD_RESULTS"  # the command that runs, in the environment of a benchmark whose figures count
FIGURE = re.compile(r"<!--=([^\s>]+)-->(.*?)<!--/-->")
COMMANDS = {
    "step": "python benchmarks/bench_step_jacobian.py --rounds 5",
    "step-moving": "python benchmarks/bench_step_jacobian.py --rounds 5 --moving",
    "moving": "python benchmarks/bench_moving.py",
    "called": "python benchmarks/bench_called.py",
    "published": "python benchmarks/bench_published.py --processor",
    "peers": "python benchmarks/bench_peers.py --parts steps,dynamics,solvers",
    "wall-time": "python benchmarks/bench_wall_time.py",
    "contact-tasks": "python benchmarks/contact_tasks.py --seeds 10",
    "batch": "python benchmarks/bench_batch.py --sizes 64,256 --cases reach,pendulum",
    "receding-horizon": "python benchmarks/bench_receding_horizon.py",
    "horizon": "python benchmarks/horizon_tasks.py push-box --seeds 8 --iterations 1",
    "gpu": "python benchmarks/bench_gpu.py",  # on a machine with one
}  # fmt: skip


def record(key: str, value: float, unit: str) -> None:
    """Keep a figure: `value` in `unit` ("us", "s", "times", "steps/s", ...), to four digits, with command, machine and commit."""
    command = os.environ.get(RECORDING)
    if not command:
        return
    from measure import banner

    figures = json.loads(RESULTS.read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    figures[key] = {
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "command": command,
        "machine": banner("mujoco"),
        "commit": commit.stdout.strip(),
    }
    RESULTS.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def written(value: float, text: str) -> str:
    """`value` with the digits of `text`: as many behind the point, or in the mantissa of an exponent."""
    plain = text.replace(",", "")
    if "e" in plain:
        mantissa = plain.partition("e")[0]
        head, _, exponent = f"{value:.{len(mantissa.partition('.')[2])}e}".partition("e")
        return f"{head}e{int(exponent)}"
    return f"{value:,.{len(plain.partition('.')[2])}f}"


def filled(text: str, figures: dict[str, dict]) -> str:
    """The text of a page with the figures that are recorded."""
    return FIGURE.sub(lambda m: f"<!--={m[1]}-->{written(figures[m[1]]['value'], m[2])}<!--/-->", text)


def wrong(text: str, figures: dict[str, dict]) -> list[str]:
    """What a page states and results.json does not."""
    found = []
    for key, shown in FIGURE.findall(text):
        if key not in figures:
            found.append(f"{key} is no figure of results.json")
        elif shown != (right := written(figures[key]["value"], shown)):
            found.append(f"{key} is {right}, the page says {shown}")
    return found


def pages() -> list[pathlib.Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill() -> None:
    figures = json.loads(RESULTS.read_text())
    for page in pages():
        text = page.read_text()
        if (new := filled(text, figures)) != text:
            page.write_text(new)
            print(f"filled in {page.relative_to(ROOT)}")


def run(names: list[str]) -> None:
    for name in names or COMMANDS:
        command = COMMANDS[name]
        print(f"\n{name}: {command}", flush=True)
        arguments = [sys.executable, *shlex.split(command)[1:]]
        if subprocess.run(arguments, cwd=ROOT, env=os.environ | {RECORDING: command}).returncode:
            print(f"{name} failed: what it had recorded until then is kept")


def main() -> None:
    what, *names = sys.argv[1:] or ["show"]
    unknown = sorted(set(names) - set(COMMANDS))
    if what not in ("show", "run", "pages") or unknown:
        raise SystemExit(f"usage: python benchmarks/results.py [run NAME ... | pages], names: {', '.join(COMMANDS)}")
    if what == "show":
        for key, figure in json.loads(RESULTS.read_text()).items():
            print(f"{key}: {figure['value']:g} {figure['unit']}  ({figure['command']}; {figure['machine']}; {figure['commit']})")
        return
    if what == "run":
        run(names)
    fill()


if __name__ == "__main__":
    main()
