"""Run the example of the README in an installation of the package, as a first user does.

    python scripts/readme_example.py README.md

JAX's default precision is left as it is: the example's line that sets it is taken out. The time is printed.
"""

from __future__ import annotations

import pathlib
import re
import sys
import time


def main() -> None:
    start = time.perf_counter()
    text = pathlib.Path(sys.argv[1]).read_text()
    code = re.search(r"^```python *\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert code is not None
    lines = [line for line in code[1].splitlines() if not line.startswith("jax.config.update")]
    names: dict = {}
    exec(compile("\n".join(lines), "README.md", "exec", dont_inherit=True), names)
    solution = names["solution"]
    print(f"success {solution.success}, {time.perf_counter() - start:.0f} s, {time.process_time():.0f} s of the processor")
    assert solution.success


if __name__ == "__main__":
    main()
