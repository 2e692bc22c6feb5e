"""Models with equality constraints, in words of MuJoCo and SDF."""

# A four-bar linkage in the x-z plane: ground 0.3, crank 0.1, coupler (0.3, 0.1), rocker 0.2; the pin's row along y is redundant.
# `%s`: more bodies and constraints.
BARS = """<mujoco model="four-bar"><compiler angle="radian"/>
  <default><geom type="capsule" size="0.01" contype="0" conaffinity="0"/><joint axis="0 1 0"/></default><worldbody>
  <body name="crank"><joint name="a"/><geom fromto="0 0 0 0 0 0.1" mass="0.2"/>
    <body name="coupler" pos="0 0 0.1"><joint name="b"/><geom fromto="0 0 0 0.3 0 0.1" mass="0.4"/></body></body>
  <body name="rocker" pos="0.3 0 0"><joint name="c"/><geom fromto="0 0 0 0 0 0.2" mass="0.3"/></body>%s
  </worldbody><equality><connect name="pin" body1="coupler" body2="rocker" anchor="0.3 0 0.1"/>%s</equality>
  <actuator><motor joint="a"/></actuator></mujoco>"""
# A parallelogram whose coupler hangs on three rockers: the third is redundant, but only while the loops are closed.
THREE = """<mujoco model="three-rockers"><compiler angle="radian"/>
  <default><geom type="capsule" size="0.01" contype="0" conaffinity="0"/><joint axis="0 1 0"/></default><worldbody>
  <body name="one"><joint name="a"/><geom fromto="0 0 0 0 0 0.2" mass="0.2"/>
    <body name="coupler" pos="0 0 0.2"><joint name="b"/><geom fromto="0 0 0 0.6 0 0" mass="0.4"/></body></body>
  <body name="two" pos="0.3 0 0"><joint name="c"/><geom fromto="0 0 0 0 0 0.2" mass="0.3"/></body>
  <body name="three" pos="0.6 0 0"><joint name="d"/><geom fromto="0 0 0 0 0 0.2" mass="0.3"/></body>
  </worldbody><equality><connect body1="coupler" body2="two" anchor="0.3 0 0"/>
  <connect body1="coupler" body2="three" anchor="0.6 0 0"/></equality></mujoco>"""
# Two free boxes welded to each other, one of them over the floor, an arm with coupled joints, and a coupled pair of tendons.
MIXED = """<mujoco model="mixed"><compiler angle="radian"/><worldbody>
  <geom name="floor" type="plane" size="0 0 1" friction="0.4" contype="0" conaffinity="1"/>
  <body name="low" pos="0 0 0.1"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" contype="1" conaffinity="0"/></body>
  <body name="high" pos="0 0 0.35"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" contype="0" conaffinity="0"/></body>
  <body name="arm" pos="1 0 1"><joint name="x" axis="0 1 0" ref="0.1"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/>
    <body pos="0.3 0 0"><joint name="y" axis="0 1 0" ref="-0.2"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/>
      <body pos="0.3 0 0"><joint name="z" axis="0 0 1"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/></body>
    </body></body>
  </worldbody><tendon><fixed name="s"><joint joint="x" coef="0.5"/><joint joint="z" coef="-1"/></fixed>
    <fixed name="t"><joint joint="y" coef="2"/></fixed></tendon>
  <equality><weld name="stack" body1="low" body2="high"/>
    <joint name="law" joint1="y" joint2="x" polycoef="0 -0.5 0.3 0.2 -0.1"/>
    <tendon name="cords" tendon1="s" tendon2="t" polycoef="0 0.7 0.1 0 0"/></equality></mujoco>"""

# The linkage of `BARS` as an SDF model: the rocker is carried by the ground, and by the coupler again.
SDF = """<sdf version="1.11"><model name="four-bar">
  <link name="crank"><inertial><mass>0.2</mass></inertial></link>
  <link name="coupler"><pose>0 0 0.1 0 0 0</pose><inertial><mass>0.4</mass></inertial></link>
  <link name="rocker"><pose>0.3 0 0 0 0 0</pose><inertial><mass>0.3</mass></inertial></link>
  <joint name="a" type="revolute"><parent>world</parent><child>crank</child><axis><xyz>0 1 0</xyz></axis></joint>
  <joint name="b" type="revolute"><parent>crank</parent><child>coupler</child><axis><xyz>0 1 0</xyz></axis></joint>
  <joint name="c" type="revolute"><parent>world</parent><child>rocker</child><axis><xyz>0 1 0</xyz></axis></joint>
  <joint name="pin" type="%s"><pose>0 0 0.2 0 0 0</pose><parent>coupler</parent><child>rocker</child>
    <axis><xyz>0 1 0</xyz></axis></joint></model></sdf>"""

# Two trees with joints of every kind, tied to each other out of any plane, one of them to the world as well; `p` follows `r`.
SPATIAL = """<mujoco model="spatial"><compiler angle="radian"/>
  <default><geom type="capsule" size="0.03" contype="0" conaffinity="0"/></default><worldbody>
  <body name="one"><freejoint/><geom type="box" size="0.1 0.15 0.05" mass="1"/>
    <body name="tip" pos="0.3 0 0.1"><joint name="a" axis="0.3 1 0.2" armature="0.01"/>
      <geom fromto="0 0 0 0.2 0 0.1" mass="0.3"/></body>
  </body>
  <body name="two" pos="0.5 0.4 0"><joint name="b" type="ball" damping="0.1"/><geom fromto="0 0 0 0.1 0.2 0.1" mass="0.6"/>
    <body name="end" pos="0.1 0.2 0.1"><joint name="p" type="slide" axis="1 0.2 0"/><geom fromto="0 0 0 0 0.2 0" mass="0.4"/>
      <body name="last" pos="0 0.2 0"><joint name="r" axis="0.1 0 1" stiffness="0.5"/>
        <geom fromto="0 0 0 0.1 0.1 0.2" mass="0.2"/></body>
    </body></body>
  </worldbody><equality><weld name="tie" body1="tip" body2="last"/><connect name="anchor" body1="one" anchor="-0.1 0.1 0.2"/>
    <joint joint1="p" joint2="r" polycoef="0 0.3 0 0 0"/></equality>
  <actuator><motor joint="a"/><motor joint="r"/></actuator></mujoco>"""
