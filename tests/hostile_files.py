"""Files that want to hurt their reader: mutations of good ones, and structures made by hand.

`python tests/hostile_files.py COUNT` loads that many mutated files, each in a child process with bounds of memory and
time, and prints what became of them. File number k is made from the seed k alone.
"""

import collections
import copy
import multiprocessing
import pathlib
import random
import sys
import tempfile
import time
import warnings
import xml.etree.ElementTree as ET

SECONDS = 5.0  # of processor time for one file
PATIENCE = 90.0  # of wall time, after which the child is ended
MEMORY = 8 << 30  # address space of a child

INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
URDF = f"""<?xml version="1.0"?><!-- a robot --><robot name="arm"><link name="base"/>
<link name="upper">{INERTIAL}<collision><origin xyz="0 0 1" rpy="0 1 0"/><geometry><box size="1 1 1"/></geometry>
</collision></link>
<link name="lower">{INERTIAL}<collision><geometry><mesh filename="part.stl" scale="1 1 1"/></geometry></collision>
<contact><lateral_friction value="0.5"/></contact></link><link name="tip">{INERTIAL}<collision><geometry>
<mesh filename="package://part/part.obj"/></geometry></collision><visual><geometry><sphere radius="1"/></geometry></visual>
</link>
<joint name="a" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="3" velocity="2"/><dynamics damping="0.1" friction="0.2"/></joint>
<joint name="b" type="continuous"><parent link="upper"/><child link="lower"/><mimic joint="a" multiplier="2" offset="1"/>
</joint>
<joint name="c" type="floating"><parent link="lower"/><child link="tip"/></joint>
<gazebo reference="upper"><mu1>0.4</mu1></gazebo></robot>"""
BODY = "<inertial><mass>1</mass><inertia><ixx>1</ixx><iyy>1</iyy><izz>1</izz></inertia></inertial>"
SDF = f"""<sdf version="1.11"><world name="w"><gravity>0 0 -9.8</gravity><frame name="f"><pose>0 0 1 0 0 0</pose></frame>
<model name="one"><pose relative_to="f">1 0 0 0 0 0</pose><self_collide>true</self_collide>
<link name="a">{BODY}<collision name="c">
<geometry><box><size>1 1 1</size></box></geometry><surface><friction><ode><mu>0.5</mu></ode></friction>
<bounce><restitution_coefficient>0.2</restitution_coefficient></bounce></surface></collision></link>
<link name="b"><pose relative_to="a">0 0 1 0 0 0</pose><inertial auto="true"/><collision name="d"><geometry><mesh>
<uri>part.stl</uri>
</mesh></geometry></collision></link><joint name="j" type="revolute"><parent>a</parent><child>b</child><axis>
<xyz>0 1 0</xyz><limit>
<lower>-1</lower><upper>1</upper></limit></axis></joint><frame name="g" attached_to="b"/></model>
<model name="two"><static>true</static><link name="a"><collision name="c"><geometry><plane/></geometry></collision></link>
</model>
<include><uri>other.sdf</uri><name>three</name><pose>0 0 5 0 0 0</pose></include></world></sdf>"""
OTHER = f'<sdf version="1.11"><model name="m"><link name="l">{BODY}</link></model></sdf>'
MJCF = """<mujoco model="scene"><compiler meshdir="."/><asset><mesh name="p" file="part.stl"/><hfield name="h" nrow="3" ncol="3"
size="1 1 1 1" elevation="0 0 0 0 1 0 0 0 0"/></asset><default><geom friction="0.6"/></default><worldbody>
<geom type="hfield" hfield="h"/>
<body name="a" pos="0 0 2"><freejoint/><geom type="mesh" mesh="p"/><site name="s"/><body name="b" pos="1 0 0">
<joint name="j" axis="0 1 0"
range="-1 1" stiffness="2"/><geom type="capsule" fromto="0 0 0 1 0 0" size="0.1"/></body></body>
<replicate count="3" offset="1 0 0"><body
pos="0 3 1"><joint type="ball"/><geom size="0.2"/></body></replicate></worldbody><contact><exclude body1="a" body2="b"/>
</contact>
<tendon><fixed name="t"><joint joint="j" coef="2"/></fixed></tendon><equality><weld body1="a" body2="b" active="false"/>
</equality>
<actuator><motor name="m" joint="j" gear="2"/><position name="n" tendon="t" kp="3"/>
<motor name="k" site="s" gear="0 0 1 0 0 0"/></actuator>
<sensor><jointpos joint="j"/></sensor><custom><numeric name="trajopt_restitution" data="0.5"/></custom>
<keyframe><key name="home"/></keyframe></mujoco>"""
OBJ = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
DAE = """<COLLADA><asset><unit meter="1"/></asset><library_geometries><geometry id="g"><mesh><source id="s">
<float_array>0 0 0 1 0 0 0 1 0
0 0 1</float_array></source><vertices id="v"><input semantic="POSITION" source="#s"/></vertices></mesh></geometry>
</library_geometries>
<library_visual_scenes><visual_scene><node><matrix>1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1</matrix><instance_geometry url="#g"/></node>
</visual_scene></library_visual_scenes></COLLADA>"""

VALUES = (
    *"| |nan|inf|-inf|-1|0|1|1e308|-1e308|1e-320|1e40|1e9|3000000000|0x10|1e999|2147483648|true|\N{SNOWMAN}|a::b|::".split(
        "|"
    ),
    *"a|world|base|__model__|../../../etc/passwd|/dev/zero|package://../../etc/passwd|file:///etc/passwd".split("|"),
    *"0 0 0|0 0 0 0 0 0|1 0 0 0|0 0 0 0|1 2|1e200 1e200 1e200|${open('x','w')}|$(find x)|part.stl|model.xml".split("|"),
    *"fixed|free|ball|hinge|revolute|mesh|sphere|plane".split("|"),
    "a" * 5000,
    "9" * 400,
)
FRAGMENTS = (
    '<replicate count="1000000"><body><geom size=".1"/></body></replicate>',
    '<include file="model.xml"/>',
    '<asset><model name="m" file="model.xml"/></asset>',
    '<attach model="m" prefix="p"/>',
    '<flexcomp name="x" type="grid" count="9999 9999 9" spacing="1 1 1"/>',
    '<composite type="cable" count="9999 1 1" size="1"/>',
    '<size nkey="1000000000" nuser_body="100000000"/>',
    '<custom><numeric name="z" size="1000000000"/></custom>',
    '<plugin plugin="mujoco.elasticity.cable"/>',
    "<frame/>",
    '<body><freejoint/><geom size="1"/></body>',
    '<joint type="free"/>',
    '<geom type="mesh" mesh="p"/>',
    '<model name="n"><pose>0 0 0 0 0 0</pose></model>',
    '<include merge="true"><uri>model.sdf</uri></include>',
    '<link name="zz"/>',
    '<mimic joint="b"/>',
    '<pose relative_to="one">1 1 1 1 1 1</pose>',
    '<!DOCTYPE a [<!ENTITY b "c">]>',
)


def sources() -> list[tuple[str, str]]:
    """Name and text of the good files."""
    from trajopt import models

    own = [("model.urdf", URDF), ("model.sdf", SDF), ("model.xml", MJCF)]
    return 6 * own + [("model.xml", models.bundled_file(name).read_text()) for name in models.bundled_models()]


def stl() -> bytes:
    """A tetrahedron."""
    import struct

    points = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    faces = [(0, 2, 1), (0, 1, 3), (1, 2, 3), (0, 3, 2)]
    return (
        b" " * 80
        + struct.pack("<I", 4)
        + b"".join(struct.pack("<12fH", 0, 0, 0, *(x for k in face for x in points[k]), 0) for face in faces)
    )


def mutated_tree(text: str, rng: random.Random) -> bytes:
    """The document with some elements copied, moved, removed, renamed, or their values changed."""
    root = ET.fromstring(text)
    for _ in range(rng.randint(1, 5)):
        parents = list(root.iter())
        one, other = rng.choice(parents), rng.choice(parents)
        kind = rng.randrange(9)
        if kind <= 3:
            words = rng.choice(VALUES) if rng.random() < 0.8 else str(rng.choice(list(other.attrib.values()) or ["q"]))
            if one.attrib and (rng.random() < 0.8 or not one.text):
                one.set(rng.choice(list(one.attrib)), words)
            else:
                one.text = words
        elif kind == 4 and len(one):
            one.remove(rng.choice(list(one)))
        elif kind == 5 and len(one):
            child = rng.choice(list(one))
            for _ in range(rng.choice((1, 1, 1, 3, 30))):
                other.append(copy.deepcopy(child)) if sum(1 for _ in child.iter()) < 300 else None
        elif kind == 6:
            one.tag = other.tag
        elif kind == 7:
            fragment = rng.choice(FRAGMENTS[:-1])
            one.append(ET.fromstring(fragment))
        elif kind == 8:
            one.attrib.update(other.attrib)
        if sum(1 for _ in root.iter()) > 5000:
            break
    return ET.tostring(root)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some changed, cut, copied or put in."""
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 4, 20, 200))
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(length)) + data[at + length :]
        elif kind == 1:
            data = data[:at] + data[at + length :]
        elif kind == 2:
            data = data[:at] + data[at : at + length] * rng.choice((2, 2, 50)) + data[at + length :]
        elif kind == 3:
            data = data[:at]
        elif kind == 4:
            data = data[:at] + rng.choice((*FRAGMENTS, *VALUES)).encode() + data[at:]
        else:
            digits = [k for k, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                at = rng.choice(digits)
                data = data[:at] + rng.choice((b"9", b"-", b"e", b".", b"99999999", b"e300", b"nan")) + data[at + 1 :]
    return data


def write(folder: pathlib.Path, seed: int) -> pathlib.Path:
    """Write file number `seed`, and those that it names, into a folder; returns its path."""
    rng = random.Random(seed)
    name, text = rng.choice(sources())
    meshes = {"part.stl": stl(), "part.obj": OBJ.encode(), "part.dae": DAE.encode(), "other.sdf": OTHER.encode()}
    if rng.random() < 0.1:
        broken = rng.choice(list(meshes))
        meshes[broken] = mutated_bytes(meshes[broken], rng)
        text = text.replace("part.stl", broken) if broken.startswith("part") else text
        data = text.encode()
    elif rng.random() < 0.65:
        data = mutated_tree(text, rng)
        data = mutated_bytes(data, rng) if rng.random() < 0.05 else data
    else:
        data = mutated_bytes(text.encode(), rng)
    (folder / "part").mkdir(exist_ok=True)
    for other, content in meshes.items():
        (folder / other).write_bytes(content)
        (folder / "part" / other).write_bytes(content)
    path = folder / name
    path.write_bytes(data)
    return path


def load(path: pathlib.Path) -> str:
    """Load a file: "loaded", "refused", or what else came of it."""
    from trajopt import models
    from trajopt.errors import TrajoptError

    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("ignore", models.ModelWarning)
            models.load_model(path)
        result = "loaded"
    except TrajoptError as error:
        result = "refused" if len(str(error)) < 10_000 else f"a message of {len(str(error))} characters"
    except BaseException as error:
        result = f"foreign {type(error).__name__}: {str(error)[:200]}"
    taken = time.process_time() - start
    return result if taken < SECONDS else f"slow, {taken:.1f} s, then {result}"


def serve(connection) -> None:
    """The child: bounds its memory, then loads what it is told to until it is told nothing more."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from trajopt import models

    models.load_model("cube")
    with tempfile.TemporaryDirectory() as folder:
        while (task := connection.recv()) is not None:
            path = write(pathlib.Path(folder), task) if isinstance(task, int) else pathlib.Path(task)
            connection.send(load(path))


def outcomes(tasks) -> dict[object, str]:
    """What becomes of each file (a seed, or a path), loaded in a child that is ended and replaced when it hangs or dies."""
    context = multiprocessing.get_context("spawn")
    child = connection = None
    found: dict[object, str] = {}
    for task in tasks:
        if child is None:
            connection, theirs = context.Pipe()
            child = context.Process(target=serve, args=(theirs,), daemon=True)
            child.start()
            theirs.close()
        try:
            connection.send(task)
            answered = connection.poll(PATIENCE)
            found[task] = connection.recv() if answered else "hangs"
        except (EOFError, OSError):
            child.join()
            found[task] = f"crash, exit status {child.exitcode}"
            child = None
            continue
        if not answered:
            child.kill()
            child.join()
            child = None
    if child is not None:
        connection.send(None)
        child.join()
    return found


if __name__ == "__main__":
    first, last = (0, int(sys.argv[1])) if len(sys.argv) == 2 else (int(sys.argv[1]), int(sys.argv[2]))
    results = outcomes(range(first, last))
    bad = {seed: result for seed, result in results.items() if result not in ("loaded", "refused")}
    for seed, result in bad.items():
        print(seed, result)
    fine = collections.Counter(result for result in results.values() if result in ("loaded", "refused"))
    print(dict(fine), len(bad), "bad of", len(results))
