"""Which links of one robot collide: overlaps at the default configuration, SRDF, the caller's choices; overlaps
against `collide`."""

import pytest

from trajopt import models
from trajopt.cli import main
from trajopt.errors import ModelError, OptionError
from trajopt.models.builder import ModelWarning
from trajopt.models.registry import load_model_with_report

INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1"/></inertial>'


def chain(count: int = 5, spacing: float = 0.15, radius: float = 0.1) -> str:
    """Balls in a row on revolute joints: of each, the next but one overlaps when 2 spacing < 2 radius."""
    ball = f'<collision><geometry><sphere radius="{radius}"/></geometry></collision>'
    links = "".join(f'<link name="l{k}">{INERTIAL}{ball}</link>' for k in range(count))
    joints = "".join(
        f'<joint name="j{k}" type="revolute"><parent link="l{k}"/><child link="l{k + 1}"/><origin xyz="{spacing} 0 0"/>'
        '<axis xyz="0 0 1"/><limit lower="-3" upper="3" effort="1"/></joint>'
        for k in range(count - 1)
    )
    return f'<robot name="chain">{links}{joints}</robot>'


def linked(model) -> set[tuple[str, str]]:
    shapes = model.topology.shapes
    return {tuple(sorted(shapes[k].name.split("_")[0] for k in pair)) for pair in model.topology.pairs}


ALL = {("l0", "l2"), ("l0", "l3"), ("l0", "l4"), ("l1", "l3"), ("l1", "l4"), ("l2", "l4")}
NEAR = {("l0", "l2"), ("l1", "l3"), ("l2", "l4")}


@pytest.mark.check
def test_links_that_overlap_from_the_start_are_left_out_and_named(tmp_path):
    path = tmp_path / "chain.urdf"
    path.write_text(chain(spacing=0.09))
    with pytest.warns(
        ModelWarning, match="3 pairs of links overlap .* l0 - l2, l1 - l3, l2 - l4 .self_collision='all'"
    ):
        model = models.load_model(path)
    assert linked(model) == ALL - NEAR
    assert linked(models.load_model(path, self_collision="all")) == ALL
    assert linked(models.load_model(path, self_collision="none", ground=True)) == {
        (f"l{k}", "ground")[::-1] for k in range(1, 5)
    }
    _, report = load_model_with_report(path)
    assert report.format == "urdf" and set(report.overlaps) == NEAR
    apart = tmp_path / "apart.urdf"
    apart.write_text(chain(spacing=0.1))  # the next but one only touches
    assert linked(models.load_model(apart)) == ALL


@pytest.mark.check
def test_pairs_named_by_the_caller_and_by_an_srdf(tmp_path):
    path, srdf = tmp_path / "chain.urdf", tmp_path / "chain.srdf"
    path.write_text(chain())
    assert linked(models.load_model(path, exclude=[("l4", "l0")])) == ALL - {("l0", "l4")}
    srdf.write_text(
        '<robot name="chain"><disable_collisions link1="l0" link2="l2" reason="Never"/>'
        '<disable_default_collisions link="l4"/><enable_collisions link1="l4" link2="l1"/></robot>'
    )
    assert linked(models.load_model(path, srdf=srdf)) == ALL - {("l0", "l2"), ("l0", "l4"), ("l2", "l4")}
    srdf.write_text('<robot name="chain"><disable_collisions link1="l1" link2="hat"/></robot>')
    with pytest.warns(ModelWarning, match="names links that do not exist, which is ignored: hat"):
        assert linked(models.load_model(path, srdf=srdf)) == ALL
    with pytest.raises(OptionError, match="exclude names the link 'l5', which does not exist; did you mean"):
        models.load_model(path, exclude=[("l5", "l0")])
    with pytest.raises(OptionError, match="self_collision is 'some'; expected 'auto', 'all' or 'none'"):
        models.load_model(path, self_collision="some")
    with pytest.raises(ModelError, match="this is no SRDF"):
        models.load_model(path, srdf=path)
    with pytest.raises(ModelError, match="nothing.srdf"):
        models.load_model(path, srdf=tmp_path / "nothing.srdf")


@pytest.mark.check
def test_the_world_can_be_excluded_and_mjcf_says_itself_what_collides():
    text = """<mujoco><worldbody><geom name="post" size="0.1"/>
      <body name="a"><joint/><geom name="a" size="0.1"/><body name="b"><joint/><geom size="0.1"/>
      <body name="c"><joint/><geom name="c" size="0.1"/></body></body></body></worldbody></mujoco>"""
    load = models.load_model_from_string
    assert len(load(text).topology.pairs) == 4  # a - c, and each with the post, though all of them overlap
    assert len(load(text, self_collision="none").topology.pairs) == 3
    assert len(load(text, exclude=[("a", "world"), ("c", "a")]).topology.pairs) == 2


@pytest.mark.check
def test_sdf_models_collide_with_themselves_on_request():
    ball = "<collision name='c'><geometry><sphere><radius>0.1</radius></sphere></geometry></collision>"
    link = "<link name='{0}'><pose>{1} 0 0 0 0 0</pose><inertial/>" + ball + "</link>"
    text = f"<sdf version='1.9'><model name='m'>{link.format('a', 0)}{link.format('b', 1)}{link.format('c', 1.1)}</model></sdf>"
    assert not models.load_model_from_string(text).topology.pairs
    assert len(models.load_model_from_string(text, self_collision="all").topology.pairs) == 3
    asked = text.replace("<link", "<self_collide>true</self_collide><link", 1)
    with pytest.warns(
        ModelWarning, match="1 pair of links overlaps at the default configuration and cannot collide: b - c"
    ):
        assert len(models.load_model_from_string(asked).topology.pairs) == 2


@pytest.mark.check
def test_info_names_overlaps_and_takes_the_choices(tmp_path, capsys):
    path = tmp_path / "chain.urdf"
    path.write_text(chain(spacing=0.09).replace('lower="-3"', 'lower="1"', 1))
    assert main(["info", str(path)]) == 0
    page = capsys.readouterr().out
    assert "Links that overlap at the default configuration, left out: 3: l0 - l2, l1 - l3, l2 - l4" in page
    assert "Joints outside their limits at the default configuration: j0 at 0" in page
    assert main(["info", str(path), "--self-collision", "all", "--exclude", "l0,l2", "--ground"]) == 0
    page = capsys.readouterr().out
    assert "left out: " not in page and "Contact pairs: 9" in page
    assert "Contact pairs that overlap at the default configuration: 6: " in page  # two of links, four with the ground
    assert main(["info", str(path), "--self-collision", "none"]) == 0
    assert "Contact pairs: 0" in capsys.readouterr().out
    assert main(["info", str(path), "--exclude", "l0,l9"]) == 2
    with pytest.raises(SystemExit):
        main(["info", str(path), "--exclude", "l0"])
