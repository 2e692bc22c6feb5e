"""The fingerprint of the C++ sources, by which the loader sees a core that is older than they are.

    python trajopt/native/sources.py OUT        writes the function of the core that returns it to the file OUT

Comments and white space do not count. The build runs this file by itself, with the standard library alone.
"""

import hashlib
import pathlib
import re
import sys

COMMENT = re.compile(rb"//[^\n]*")


def fingerprint(folder: pathlib.Path) -> str:
    """Of the code of all C++ files in `folder`; empty where there is none, as in a package without its sources."""
    files = sorted([*folder.glob("*.h"), *folder.glob("*.cc")], key=lambda path: path.name)
    total = hashlib.sha256()
    for path in files:
        total.update(b"\n".join([path.name.encode(), *COMMENT.sub(b"", path.read_bytes()).split(), b""]))
    return total.hexdigest()[:16] if files else ""


def main() -> None:
    """Write the C++ file that is named on the command line."""
    value = fingerprint(pathlib.Path(__file__).resolve().parent)
    code = f'extern "C" __attribute__((visibility("default"))) const char* trajopt_sources() {{ return "{value}"; }}\n'
    pathlib.Path(sys.argv[1]).write_text(code)


if __name__ == "__main__":
    main()
