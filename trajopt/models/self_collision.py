"""Which links of one robot may touch each other: the choices of the caller, SRDF files, links that overlap from the start.

URDF does not say which links collide, and the shapes of neighbouring links often overlap in every configuration: the solver would
push them apart for ever. So links whose shapes overlap at the default configuration do not collide unless the caller asks for it,
as in MoveIt's setup assistant. SRDF files list such pairs too.
"""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

from trajopt.dynamics.model import Model
from trajopt.errors import ModelError, OptionError
from trajopt.models.limits import NEAR_PAIRS
from trajopt.models.messages import listed
from trajopt.models.overlaps import overlapping_pairs
from trajopt.models.pairs import PlacedShape
from trajopt.models.xml import parse_xml, read_file, required
from trajopt.names import SELF_COLLISION, closest

LinkPair = frozenset[str | None]  # names of two bodies, None for the world


@dataclasses.dataclass(frozen=True)
class SelfCollision:
    """Which links of the same robot collide.

    - `choice`: "auto" leaves out, in URDF and SDF files, links that overlap at the default configuration; "all" keeps every pair
      that the neighbour filter leaves, and sets self_collide for SDF models; "none" keeps no pair of two links of one robot.
    - `srdf`: a file whose `<disable_collisions>` are left out.
    - `exclude`: pairs of links to leave out, by name; "world" is the fixed world.

    Raises `OptionError` when it is made with something else.
    """

    choice: str = "auto"
    srdf: str | None = None
    exclude: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.choice not in SELF_COLLISION:
            raise OptionError(f"self_collision is {self.choice!r}; expected 'auto', 'all' or 'none'")
        for pair in self.exclude:
            if len(pair) != 2 or not all(isinstance(name, str) for name in pair):
                raise OptionError(f"exclude holds {pair!r}; expected pairs of link names, as in [('link_a', 'link_b')]")

    def left_out(self, bodies: Collection[str], source: str) -> tuple[set[LinkPair], list[str]]:
        """The pairs of links that `exclude` and the SRDF name, and what there is to warn of. `OptionError` for unknown links."""
        pairs: set[LinkPair] = set()
        for pair in self.exclude:
            for name in pair:
                if name != "world" and name not in bodies:
                    raise OptionError(
                        f"{source}: exclude names the link '{name}', which does not exist{closest(name, bodies)}"
                    )
            pairs.add(frozenset(None if name == "world" else name for name in pair))
        if self.srdf is None:
            return pairs, []
        disabled, unknown = read_srdf(Path(self.srdf), bodies)
        warnings = []
        if unknown:
            warnings.append(
                f"the SRDF '{self.srdf}' names links that do not exist, which is ignored: {listed(unknown)}"
            )
        return pairs | disabled, warnings


def read_srdf(path: Path, bodies: Collection[str]) -> tuple[set[LinkPair], list[str]]:
    """(Pairs of links that an SRDF file disables, names in it that are no links of the robot).

    `<disable_collisions link1 link2>`; with `<disable_default_collisions link>` all pairs of a link but those that
    `<enable_collisions link1 link2>` names. Raises `ModelError` for a file that is no SRDF.
    """
    source = str(path)
    root = parse_xml(read_file(path), source)
    if root.tag != "robot" or root.find("link") is not None:
        raise ModelError(f"{source}: this is no SRDF; expected a <robot> with <disable_collisions>, without <link>")
    unknown: dict[str, None] = {}

    def ends(tag: str) -> list[LinkPair]:
        pairs: list[LinkPair] = []
        for element in root.findall(tag):
            names = [required(element, end) for end in ("link1", "link2")]
            unknown.update(dict.fromkeys(name for name in names if name not in bodies))
            pairs.append(frozenset(names))
        return pairs

    by_default: set[LinkPair] = set()
    for element in root.findall("disable_default_collisions"):
        link = required(element, "link")
        unknown.update({} if link in bodies else {link: None})
        by_default |= {frozenset((link, other)) for other in bodies if other != link}
    return (by_default - set(ends("enable_collisions"))) | set(ends("disable_collisions")), list(unknown)


def overlapping_links(model: Model, shapes: Sequence[PlacedShape]) -> list[tuple[str, str]]:
    """Pairs of links of one robot with shapes that overlap at the default configuration, in the order of the shapes."""
    links: dict[tuple[str, str], None] = {}
    inside = tuple((i, j) for i, j in model.topology.pairs if one_robot(shapes[i], shapes[j]))
    top = dataclasses.replace(model.topology, pairs=inside)
    overlaps = overlapping_pairs(dataclasses.replace(model, topology=top), most=NEAR_PAIRS)
    for i, j in sorted((min(pair), max(pair)) for pair in overlaps):
        links[str(shapes[i].body), str(shapes[j].body)] = None
    return list(links)


def one_robot(one: PlacedShape, other: PlacedShape) -> bool:
    """Whether two shapes belong to links of the same robot."""
    return one.robot is not None and one.robot == other.robot


def overlap_warning(links: Sequence[tuple[str, str]]) -> str:
    """The warning for links that `overlapping_links` found."""
    pairs = listed([f"{a} - {b}" for a, b in links])
    count = "1 pair of links overlaps" if len(links) == 1 else f"{len(links)} pairs of links overlap"
    return (
        f"{count} at the default configuration and cannot collide: {pairs} "
        "(self_collision='all' keeps them, `trajopt info` lists them)"
    )
