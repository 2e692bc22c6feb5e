"""The table that `problems/test_every_problem_ends.py` leaves: a line per problem and number of threads."""

import pathlib

PATH = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "every-problem-ends.txt"
HEADER = f"{'problem':<28} {'threads':>7} {'exit status':>11} {'seconds':>8}"


def record(name: str, threads: int, status: int | str, seconds: float) -> None:
    """Write the line of a run, in place of that of an earlier one."""
    rows = {tuple(line.split()[:2]): line for line in lines()}
    rows[name, str(threads)] = f"{name:<28} {threads:>7} {status!s:>11} {seconds:>8.0f}"
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text("\n".join([HEADER, *rows.values()]) + "\n")


def lines() -> list[str]:
    """Lines of the table, without its header."""
    return PATH.read_text().splitlines()[1:] if PATH.exists() else []
