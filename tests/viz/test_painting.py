"""The camera sees right, up and near as they are, and what is near is painted over what is far."""

from __future__ import annotations

import numpy as np
import pytest

from trajopt.viz.painting import Camera, Canvas

SIDE = 100


@pytest.fixture
def camera():
    """At the side of -y, a little above: x is to the right, z upwards."""
    return Camera(np.array([1.0, 2.0, 3.0]), 0.5, -90.0, 10.0, SIDE)


def test_the_centre_is_in_the_middle_and_axes_point_where_they_should(camera):
    steps = np.array([np.zeros(3), [0.1, 0, 0], [0, 0, 0.1], [0, -0.1, 0]])
    places, depth = camera.project(camera.centre + steps)
    np.testing.assert_allclose(places[0], [SIDE / 2, SIDE / 2], atol=1e-9)
    assert places[1, 0] > places[0, 0] and places[1, 1] == pytest.approx(places[0, 1])
    assert places[2, 1] < places[0, 1] and places[2, 0] == pytest.approx(places[0, 0])
    assert depth[3] < depth[0] == pytest.approx(np.linalg.norm(camera.eye - camera.centre))
    np.testing.assert_allclose(camera.axes @ camera.axes.T, np.eye(3), atol=1e-12)


def test_a_ball_of_the_radius_fits(camera):
    direction = np.random.default_rng(0).normal(size=(500, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    places, _ = camera.project(camera.centre + camera.radius * direction)
    assert 0 <= places.min() < 0.1 * SIDE and 0.9 * SIDE < places.max() <= SIDE


def square(y: float, size: float) -> np.ndarray:
    corners = np.array([[-size, 0, -size], [size, 0, -size], [size, 0, size], [-size, 0, size]])
    return corners + np.array([1.0, 2.0 + y, 3.0])


def test_what_is_near_covers_what_is_far_in_any_order(camera):
    near, far, colours = square(-0.2, 0.1), square(0.2, 0.3), np.array([[1.0, 0, 0], [0, 0, 1.0]])
    pictures = []
    for order in ([0, 1], [1, 0]):
        canvas = Canvas(camera)
        canvas.polygons(np.array([near, far])[order], colours[order])
        pictures.append(canvas.picture())
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert pictures[0].shape == (SIDE, SIDE, 3)
    assert pictures[0][SIDE // 2, SIDE // 2].tolist() == [255, 0, 0]
    assert pictures[0][SIDE // 2, SIDE // 2 + 18].tolist() == [0, 0, 255]
    assert pictures[0][2, 2].tolist() == [255, 255, 255]


def test_faces_are_seen_from_their_outer_side_only(camera):
    faces = np.array([square(0.0, 0.1)] * 2)
    assert camera.faces_it(faces, np.array([[0.0, -1.0, 0.0], [0.0, 1.0, 0.0]])).tolist() == [True, False]


def test_lines_and_labels_are_drawn(camera):
    canvas = Canvas(camera)
    canvas.lines(np.array([[[0.6, 2.0, 3.0], [1.4, 2.0, 3.0]]]), "#000000", 2.0)
    picture = canvas.picture("t = 1 s")
    assert (picture[SIDE // 2 - 1 : SIDE // 2 + 1, 30:70] < 140).all(), "half of each of these pixels at least is line"
    assert (picture[:12, :40] < 128).any(), "the label is in the upper left corner"
    assert (Canvas(camera).picture() == 255).all()
