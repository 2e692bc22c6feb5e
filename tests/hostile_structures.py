"""Structures made by hand that want to hurt their reader: loops, copies of copies, sizes, pipes, chains."""

import functools
import os
import pathlib

from hostile_files import BODY, INERTIAL, OBJ, SDF, stl

# Structures made by hand: name, files by name (text, bytes or a length of zeros), what the error says (None: it loads).


def robot(links: int, joint) -> str:
    """A URDF of links l0, l1, ...; `joint(k)` gives parent, and what else joint k says."""
    parts = [f'<link name="l{k}">{INERTIAL}</link>' for k in range(links)]
    for k in range(1, links):
        parent, rest = joint(k)
        parts.append(
            f'<joint name="j{k}" type="revolute"><parent link="l{parent}"/><child link="l{k}"/><axis xyz="0 0 1"/>'
            f'<limit lower="-1" upper="1" effort="1" velocity="1"/>{rest}</joint>'
        )
    return '<robot name="r">' + "".join(parts) + "</robot>"


def collide(text: str) -> str:
    """The same with a ball around every link."""
    return text.replace("</inertial>", '</inertial><collision><geometry><sphere radius="1"/></geometry></collision>')


def scene(body: str, rest: str = "") -> str:
    return f"<mujoco>{rest}<worldbody>{body}</worldbody></mujoco>"


BALL = '<body><freejoint/><geom size="0.1"/></body>'
MESH_ROBOT = (
    '<robot name="r"><link name="l">{}<collision><geometry><mesh filename="{}"/></geometry></collision></link></robot>'
)


def frames(count: int, order: int) -> str:
    """An SDF model with a chain of frames, in the order of their references or against it."""
    chain = [f'<frame name="f{k}"><pose relative_to="f{k - 1}">1 0 0 0 0 0</pose></frame>' for k in range(1, count)]
    head = f'<sdf version="1.11"><model name="m"><link name="l">{BODY}</link><frame name="f0"/>'
    return head + "".join(chain[::order]) + "</model></sdf>"


def nested(depth: int) -> str:
    inner = f'<link name="l">{BODY}</link>'
    for k in range(depth):
        inner = f'<model name="m{k}">{inner}</model>'
    return f'<sdf version="1.11">{inner}</sdf>'


def doubling(levels: int, suffix: str, wrap) -> dict[str, str]:
    """Files 0, 1, ..., each naming the next one twice: 2^levels copies of the last one."""
    return {f"{k}{suffix}": wrap(k, k + 1 if k < levels else None) for k in range(levels + 1)}


def sdf_level(k: int, child: int | None) -> str:
    two = "" if child is None else "".join(f"<include><uri>{child}.sdf</uri><name>{n}</name></include>" for n in "ab")
    return f'<sdf version="1.11"><model name="m"><link name="l">{BODY}</link>{two}</model></sdf>'


def mjcf_level(k: int, child: int | None) -> str:
    if child is None:
        return scene(f'<body name="b">{BALL.replace("<freejoint/>", "")}</body>')
    two = "".join(f'<frame pos="{n} 0 0"><attach model="m" body="b" prefix="{n}{k}"/></frame>' for n in range(2))
    return scene(f'<body name="b">{two}</body>', f'<asset><model name="m" file="{child}.xml"/></asset>')


def cyclic_frames() -> str:
    return (
        f'<sdf version="1.11"><world name="w"><model name="a"><pose relative_to="a::f">0 0 0 0 0 0</pose>'
        f'<link name="l">{BODY}</link>'
        '<frame name="f"><pose relative_to="world">0 0 0 0 0 0</pose></frame></model></world></sdf>'
    )


def png(width: int, height: int) -> bytes:
    import struct

    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(20)


def glb(count: int) -> bytes:
    """A glTF file whose accessor stands for `count` points that are not in the file."""
    import json
    import struct

    text = json.dumps(
        {
            "asset": {"version": "2.0"},
            "scenes": [{"nodes": [0]}],
            "nodes": [{"mesh": 0}],
            "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
            "accessors": [{"componentType": 5126, "count": count, "type": "VEC3"}],
        }
    ).encode()
    text += b" " * (-len(text) % 4)
    return struct.pack("<4sIII4s", b"glTF", 2, 20 + len(text), len(text), b"JSON") + text


@functools.cache
def bomb() -> bytes:
    """A zip archive of a few kB that unfolds to a mesh of 20 MB."""
    import io
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m.obj", b"v 0 0 0\n" * (20_000_000 // 8))
    return out.getvalue()


def structures() -> dict[str, tuple[dict[str, object], str | None]]:
    """By name: the files, the first being the model, and what its error says; None where it loads."""
    link, free = INERTIAL, f'<robot name="r"><link name="l">{INERTIAL}'
    kept = {"r.urdf": MESH_ROBOT.format(link, "part.stl"), "part.stl": stl()}
    return {
        "comments and a cut element": (
            {"r.urdf": free + "<!-- a comment -->\n" * 3000 + "<link name"},
            "not well-formed",
        ),
        "comments without an end": ({"r.urdf": free + "<!--" * 100_000}, "not well-formed"),
        "white space": ({"r.urdf": " " * 300_000 + free}, "not well-formed"),
        "white space behind": ({"r.urdf": robot(1, None) + "\n" * 300_000}, None),
        "deep": ({"r.urdf": free + "<a>" * 100_000}, "nesting is too deep"),
        "wide": ({"r.urdf": free + "<a/>" * 200_000 + "</link></robot>"}, "XML elements"),
        "long attribute": ({"r.urdf": robot(1, None).replace('"1"', f'"{"1 " * 300_000}"', 1)}, "expected 1"),
        "long names": ({"r.urdf": robot(40, lambda k: ("x" * 30_000, ""))}, "does not exist"),
        "star": ({"r.urdf": collide(robot(2000, lambda k: (0, "")))}, "2,000 links; at most"),
        "smaller star": (
            {"r.urdf": collide(robot(200, lambda k: (0, "")))},
            "pairs of shapes of one robot near each other",
        ),
        "chain": ({"r.urdf": robot(2000, lambda k: (k - 1, ""))}, "2,000 links; at most"),
        "mimics": ({"r.urdf": robot(900, lambda k: (0, f'<mimic joint="j{k - 1}"/>' if k > 1 else ""))}, None),
        "many mimics": (
            {"r.urdf": robot(3000, lambda k: (0, f'<mimic joint="j{k - 1}"/>' if k > 1 else ""))},
            "links; at most",
        ),
        "mimic loop": ({"r.urdf": robot(500, lambda k: (0, f'<mimic joint="j{k % 499 + 1}"/>'))}, "in a loop"),
        "outside of a package": (
            {"robot/r.urdf": MESH_ROBOT.format(link, "package://robot/../part.stl"), "part.stl": stl()},
            None,
        ),
        "zip": ({"r.urdf": MESH_ROBOT.format(link, "m.zip"), "m.zip": bomb()}, None),
        "zip by another name": ({"r.urdf": MESH_ROBOT.format(link, "m.ply"), "m.ply": bomb()}, None),
        "points from nothing": ({"r.urdf": MESH_ROBOT.format(link, "m.glb"), "m.glb": glb(10**10)}, None),
        "sparse mesh": ({"r.urdf": MESH_ROBOT.format(link, "m.stl"), "m.stl": 3_000_000_000}, None),
        "pipe as mesh": ({"r.urdf": MESH_ROBOT.format(link, "m.stl"), "m.stl": None}, None),
        "thin mesh": (
            {**kept, "part.obj": OBJ, "r.urdf": kept["r.urdf"].replace("part.stl", 'part.obj" scale="1 1 1e-7')},
            None,
        ),
        "vast mesh": ({**kept, "r.urdf": kept["r.urdf"].replace("part.stl", 'part.stl" scale="1e30 1 1')}, None),
        "long file name": ({"r.urdf": MESH_ROBOT.format(link, "m" * 5000)}, None),
        "NUL in a file name": ({"r.sdf": SDF.replace("other.sdf", "a&#0;")}, "not well-formed"),
        "sparse model": ({"r.urdf": 3_000_000_000}, "3,000,000,000|MiB"),
        "pipe as model": ({"r.urdf": None}, "no regular file"),
        "model that includes itself": ({"0.sdf": sdf_level(0, 0)}, "levels deep|models are included"),
        "doubled includes": (doubling(15, ".sdf", sdf_level), "models are included"),
        "nested models": ({"r.sdf": nested(300)}, "levels deep"),
        "frames in order": ({"r.sdf": frames(3000, 1)}, None),
        "frames against it": ({"r.sdf": frames(3000, -1)}, "deep"),
        "frames through a model": ({"r.sdf": cyclic_frames()}, "in a loop"),
        "pipe as include": ({"r.sdf": SDF, "other.sdf": None}, "is not found"),
        "self attached": (
            {"r.xml": scene(BALL + '<attach model="m" prefix="p"/>', '<asset><model name="m" file="r.xml"/></asset>')},
            "loop",
        ),
        "attached in a ring": (
            {f"{k}.xml": scene(BALL, f'<asset><model name="m" file="{(k + 1) % 3}.xml"/></asset>') for k in range(3)},
            "loop",
        ),
        "include and attach": (
            {
                "r.xml": scene(BALL + "<include file='i.xml'/>"),
                "i.xml": "<mujocoinclude><asset><model file='r.xml'/></asset></mujocoinclude>",
            },
            "loop",
        ),
        "doubled attachments": (doubling(15, ".xml", mjcf_level), "with replicated and attached ones"),
        "replicated": ({"r.xml": scene(f'<replicate count="1000000">{BALL}</replicate>')}, "with replicated"),
        "replicated thrice": (
            {"r.xml": scene('<replicate count="30">' * 3 + BALL + "</replicate>" * 3)},
            "with replicated",
        ),
        "keyframes": ({"r.xml": scene(BALL, "<size nkey='1000000000'/>")}, "nkey"),
        "numbers of users": ({"r.xml": scene(BALL, "<size nuser_body='1000000000'/>")}, "nuser_body"),
        "memory": ({"r.xml": scene(BALL, "<size memory='900G'/>")}, None),
        "flexcomp": (
            {"r.xml": scene('<flexcomp name="a" type="grid" count="1000 1000 1000" spacing=".1 .1 .1" dim="3"/>')},
            "it makes 1,000,000,003",
        ),
        "hfield": (
            {"r.xml": scene(BALL, '<asset><hfield name="a" nrow="40000" ncol="40000" size="1 1 1 1"/></asset>')},
            "heights",
        ),
        "hfield from a picture": (
            {
                "r.xml": scene(BALL, '<asset><hfield name="a" file="a.png" size="1 1 1 1"/></asset>'),
                "a.png": png(60000, 60000),
            },
            "heights",
        ),
        "pipe as asset of an included file": (
            {
                "r.xml": scene(BALL + '<include file="i.xml"/>', '<compiler meshdir="meshes"/>'),
                "i.xml": '<mujocoinclude><asset><mesh name="a" file="m.stl"/></asset></mujocoinclude>',
                "meshes/m.stl": None,
            },
            "no regular file",
        ),
        "pipe as asset": (
            {"r.xml": scene(BALL, '<asset><mesh name="a" file="m.stl"/></asset>'), "m.stl": None},
            "no regular file",
        ),
        "builtin mesh": (
            {"r.xml": scene(BALL, '<asset><mesh name="a" builtin="supersphere" params="100000 1 1"/></asset>')},
            "params",
        ),
        "sensor": (
            {"r.xml": scene(BALL).replace("</mujoco>", "<sensor><user dim='2000000000'/></sensor></mujoco>")},
            "dim|too many",
        ),
    }


def lay_out(folder: pathlib.Path, files: dict[str, object]) -> pathlib.Path:
    """Write files; None is a pipe, a number the length of a file of zeros without blocks. Returns the first one's path."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(path)
        elif isinstance(content, int):
            with path.open("wb") as file:
                file.truncate(content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / next(iter(files))
