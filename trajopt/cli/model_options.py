"""The options of `load_model` on the command line, for the commands that take a model file."""

import argparse
import pathlib
from typing import Any

from trajopt.names import SELF_COLLISION


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command's parser."""
    group = parser.add_argument_group("how a model file is read")
    group.add_argument(
        "--self-collision", choices=SELF_COLLISION, default="auto",
        help="links of one robot: as the file says, in URDF and SDF without those that overlap at the default configuration "
        "(auto, the default); those too (all); no pair of them (none)",
    )  # fmt: skip
    group.add_argument(
        "--srdf", metavar="FILE", type=pathlib.Path, help="leave out the pairs of links that it disables"
    )
    group.add_argument(
        "--exclude", metavar="LINK,LINK", action="append", default=[], type=_pair, help="leave out this pair of links"
    )
    group.add_argument(
        "--floating-base", action=argparse.BooleanOptionalAction, help="give or take the base's free joint"
    )
    group.add_argument("--ground", action="store_true", help="add the plane z = 0")
    group.add_argument(
        "--package-dir",
        metavar="DIR",
        action="append",
        default=[],
        type=pathlib.Path,
        help="look for package:// names here",
    )
    group.add_argument(
        "--xacro", action="store_true", help="expand a .xacro file, which runs the code in it: only for files that you trust"
    )


def model_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `load_model` that the command line gives."""
    return {
        "self_collision": args.self_collision,
        "srdf": args.srdf,
        "exclude": tuple(args.exclude),
        "floating_base": args.floating_base,
        "ground": args.ground,
        "package_dirs": tuple(args.package_dir),
        "xacro": args.xacro,
    }


def _pair(text: str) -> tuple[str, str]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"'{text}' is not a pair of links, LINK,LINK")
    return names[0], names[1]
