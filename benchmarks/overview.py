"""The README's picture: the first frame of finished runs side by side.

    for p in go1-handstand h1-pushup go1-stand-payload; do trajopt run $p --out runs/$p; done
    python benchmarks/overview.py runs/go1-handstand runs/h1-pushup runs/go1-stand-payload --out docs/images/overview.png

The folders are read in the order given.
"""

from __future__ import annotations

import argparse
import pathlib

from PIL import Image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    frames = [Image.open(run / "animation.gif").convert("RGB") for run in arguments.runs]
    picture = Image.new("RGB", (sum(f.width for f in frames), max(f.height for f in frames)), "white")
    left = 0
    for frame in frames:
        picture.paste(frame, (left, 0))
        left += frame.width
    picture.quantize(128).save(arguments.out, optimize=True)


if __name__ == "__main__":
    main()
