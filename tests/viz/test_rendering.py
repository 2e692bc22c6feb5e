"""Pictures in space: what is nearer hides what is farther, whatever is drawn first."""

import numpy as np
import pytest

from trajopt.models import load_model
from trajopt.viz.rendering import Camera, Renderer, Scene
from trajopt.viz.rendering.camera import framing, round_number
from trajopt.viz.rendering.scene import body_colours, rgb
from trajopt.viz.shapes3d import placements

SIDE = 120
FRONT = Camera(np.zeros(3), 10.0, -90.0, 0.0, SIDE, SIDE)  # looks along +y


def scene_of(shapes: str, tmp_path) -> Scene:
    path = tmp_path / "scene.xml"
    path.write_text(f"<mujoco><worldbody>{shapes}</worldbody></mujoco>")
    return Scene(load_model(path))


def body(name: str, kind: str, size: str, place: str) -> str:
    geom = f'<geom name="{name}" type="{kind}" size="{size}" mass="1"/>'
    return f'<body name="{name}" pos="{place}"><freejoint name="{name}"/>{geom}</body>'


def drawn(scene: Scene, camera: Camera) -> np.ndarray:
    q = np.asarray(scene.model.q_default)[None]
    rotation, position = placements(scene.model, q)
    pose = scene.pose(rotation[0], position[0], np.zeros((0, 2, 3)))
    return Renderer(scene).draw(pose, camera).astype(float)


def coloured(image: np.ndarray, colour: str) -> np.ndarray:
    """(h, w): pixels whose hue is about that of a colour."""
    wanted, found = rgb(colour), image / 255
    grey = found.mean(-1, keepdims=True)
    hue, shade = wanted - wanted.mean(), found - grey
    size = np.linalg.norm(shade, axis=-1) * np.linalg.norm(hue)
    return (np.linalg.norm(shade, axis=-1) > 0.1) & ((shade @ hue) > 0.95 * size)


def test_a_ball_is_as_large_as_it_should_be(tmp_path):
    scene = scene_of(body("ball", "sphere", "0.5", "0 0 0"), tmp_path)
    seen = coloured(drawn(scene, FRONT), body_colours(scene.model)[1])
    # A ball's outline is seen under asin(r / d); its 18 facets around take away up to 1.5 % of the radius.
    radius = FRONT.focal * np.tan(np.arcsin(0.5 / 10.0))
    assert np.pi * radius**2 == pytest.approx(seen.sum(), rel=0.08)
    rows, columns = np.nonzero(seen)
    assert rows.mean() + 0.5 == pytest.approx(SIDE / 2, abs=0.6) and columns.mean() + 0.5 == pytest.approx(SIDE / 2, abs=0.6)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_nearer_hides_the_farther_in_whatever_order_they_are_listed(tmp_path, order):
    """A long plate with a small box in front of its near end, of which the mean distances of faces say the opposite."""
    shapes = [body("plate", "box", "0.2 3 0.6", "0 -1 0"), body("small", "box", "0.5 0.05 0.2", "0 -4.2 0")]
    scene = scene_of("".join(shapes[k] for k in order), tmp_path)
    colours, names = body_colours(scene.model), scene.model.topology.node_names
    small = next(colours[k] for k in range(len(names)) if names[k] == "small" and scene.model.mass[k] > 0)
    seen = coloured(drawn(scene, FRONT), small)
    assert seen[SIDE // 2 - 3 : SIDE // 2 + 3, SIDE // 2 - 8 : SIDE // 2 + 8].all()


def test_the_ground_is_below_what_stands_on_it():
    model = load_model("cube")
    scene = Scene(model)
    image = drawn(scene, Camera(np.array([0, 0, 0.1]), 3.0, -60.0, 18.0, SIDE, SIDE))
    seen = coloured(image, body_colours(model)[1])
    assert seen.sum() > 200 and (image[-1] < 250).all(), "tiles below"
    assert (image[seen].mean(0) > 0).all()


def test_a_framed_motion_fills_the_picture():
    points = np.random.default_rng(1).uniform([-2, -0.1, 0], [2, 0.1, 1], (60, 3))
    camera = framing(points, -80.0, 10.0, 480, (0.45, 1.0))
    places, depth = camera.project(points)
    assert (places >= 0).all() and (places <= [camera.width, camera.height]).all() and (depth > 0).all()
    assert np.ptp(places[:, 0]) > 0.8 * camera.width, "a cart on its rail is as wide as the picture"
    assert camera.height < camera.width
    words = 0.05 * camera.width  # above and below
    assert places[:, 1].min() > words and places[:, 1].max() < camera.height - words


def test_rays_meet_the_points_that_are_projected():
    camera = Camera(np.array([0.1, 0.2, 0.3]), 4.0, 30.0, 20.0, 200, 100)
    points = np.array([[0.3, 0.1, 0.2], [-0.2, 0.5, 0.4]])
    places, depth = camera.project(points)
    rays = camera.rays(places[:, 0], places[:, 1])
    np.testing.assert_allclose(camera.eye + depth[:, None] * rays, points, atol=1e-12)


def test_every_body_has_a_colour_and_limbs_differ():
    model = load_model("go1")
    colours, names = body_colours(model), model.topology.node_names
    assert set(colours) == set(range(model.topology.n_nodes))
    hips = {colours[names.index(f"{leg}_hip")] for leg in ("FR", "FL", "RR", "RL")}
    assert len(hips) == 4 and colours[names.index("trunk")] not in hips
    assert [round_number(value) for value in (0.9, 0.13, 36.0)] == [1.0, 0.1, 50.0]
