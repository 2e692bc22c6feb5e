"""The animations of some runs side by side as one GIF, for a page that has room for one picture.

    for problem in atlas-jump catapult half-cheetah; do trajopt run $problem --animation --out runs/$problem; done
    python scripts/motions_picture.py runs docs/images/motions.gif atlas-jump catapult half-cheetah

Every animation plays at its own pace, as long as the longest; frames are thinned out to keep the file small.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from trajopt.viz.animation import palette

HEIGHT, FRAMES, SECONDS, LABEL = 240, 45, 3.0, 22


def frames(path: pathlib.Path) -> list[Image.Image]:
    """`FRAMES` frames of a GIF, `HEIGHT` pixels high."""
    with Image.open(path) as image:
        chosen = np.linspace(0, image.n_frames - 1, FRAMES).round().astype(int)
        found = []
        for k in chosen:
            image.seek(int(k))
            frame = image.convert("RGB")
            found.append(frame.resize((round(frame.width * HEIGHT / frame.height), HEIGHT), Image.Resampling.LANCZOS))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("problems", nargs="+")
    args = parser.parse_args()
    films = [frames(args.runs / name / "animation.gif") for name in args.problems]
    width = sum(film[0].width for film in films)
    pictures = []
    for k in range(FRAMES):
        picture = Image.new("RGB", (width, HEIGHT + LABEL), "white")
        left = 0
        for name, film in zip(args.problems, films, strict=True):
            picture.paste(film[k], (left, 0))
            middle = (left + film[k].width // 2, HEIGHT + LABEL // 2)
            ImageDraw.Draw(picture).text(middle, name, fill="#303030", anchor="mm", font=ImageFont.load_default(13))
            left += film[k].width
        pictures.append(picture)
    colours = palette([np.asarray(picture) for picture in pictures])
    images = [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in pictures]
    each = round(1000 * SECONDS / FRAMES)
    images[0].save(args.out, save_all=True, append_images=images[1:], duration=each, loop=0, optimize=True)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
