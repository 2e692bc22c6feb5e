"""The animation: a body's image moves as the body does."""

import numpy as np
import pytest
from kills import snapshots
from PIL import Image

from trajopt.models import load_model
from trajopt.viz import animation
from trajopt.viz.plots import axes


def motion(model, count, shift):
    q = np.tile(np.asarray(model.q_default), (count, 1))
    q[:, 0] = np.linspace(0, shift, count)
    return {"t": np.linspace(0, 1, count), "q": q}


def test_frames_follow_the_motion(tmp_path):
    model = load_model("cube")
    path = animation.animate(model, motion(model, 5, 1.0), tmp_path / "animation.gif", pixels=160)
    frames = []
    with Image.open(path) as image:
        assert image.n_frames == 5
        assert image.info["duration"] == pytest.approx(1000 * animation.SHORTEST_S / 5)
        for k in range(5):
            image.seek(k)
            frames.append(np.asarray(image.convert("RGB"), float))
    blue = [np.argwhere(frame[..., 2] > frame[..., 0] + 60) for frame in frames]
    assert all(len(pixels) > 50 for pixels in blue)
    columns = np.array([pixels[:, 1].mean() for pixels in blue])
    assert np.all(np.diff(columns) > 3), "the cube moves along +x, which is to the right of the picture"
    assert path.with_suffix(".mp4").exists() == (animation.ffmpeg() is not None)


def test_long_motions_are_thinned_out():
    keep = animation.subsample(12345, 100)
    assert len(keep) == 100 and keep[0] == 0 and keep[-1] == 12344
    assert animation.subsample(7, 100).tolist() == list(range(7))


def test_a_pose_is_shown_from_all_sides(tmp_path, monkeypatch):
    monkeypatch.setattr(animation, "TURN_FRAMES", 4)
    monkeypatch.setattr(animation, "ffmpeg", lambda: None)
    model = load_model("go1")
    q = np.asarray(model.q_default)[None]
    path = animation.animate(model, {"q": np.concatenate([q, q])}, tmp_path / "animation.gif", pixels=120)
    with Image.open(path) as image:
        assert image.n_frames == 4
        first = np.asarray(image.convert("RGB"), float)
        image.seek(1)
        assert np.abs(np.asarray(image.convert("RGB"), float) - first).mean() > 2
    assert not path.with_suffix(".mp4").exists()


def test_contact_forces_are_arrows_from_the_ground_up(tmp_path):
    """A resting cube with its weight on four corners, and without: the pictures differ by red pixels."""
    model = load_model("cube")
    held = motion(model, 2, 0.0) | {"impulse": np.tile([0.0, 0.0, 5.0], (1, 4, 1))}
    red = []
    for name, what in (("with", held), ("without", motion(model, 2, 0.0))):
        path = animation.animate(model, what, tmp_path / f"{name}.gif", pixels=120)
        with Image.open(path) as image:
            frame = np.asarray(image.convert("RGB"), float)
        red.append(int(((frame[..., 0] > 120) & (frame[..., 1] < 80)).sum()))
    assert red[0] > 30 and red[1] == 0


def test_wherever_drawing_is_killed_a_picture_is_the_old_or_the_new_one(tmp_path):
    """Animations, plots and pages; a picture that fails leaves the old one."""
    folder, model = tmp_path / "out", load_model("cube")
    folder.mkdir()
    figure, _ = axes.figure(1)

    def draw(shift: float) -> dict[str, bytes]:
        animation.animate(model, motion(model, 4, shift), folder / "animation.gif", pixels=60)
        figure.suptitle(str(shift))
        axes.save(figure, folder / "plot.png")
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    old = draw(0.5)
    with snapshots(folder, tmp_path / "copies") as found:
        new = draw(1.0)
    assert {"animation.gif", "plot.png"} <= old.keys() and all(old[name] != new[name] for name in old)
    for name in old:
        seen = [(copy / name).read_bytes() for copy in found]
        assert set(seen) == {old[name], new[name]}
        assert [content == new[name] for content in seen] == sorted(content == new[name] for content in seen)
    with pytest.raises(ValueError, match="format"):
        axes.save(figure, folder / "plot.nothing")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == new
    assert axes.save(figure, folder / "other") is figure and (folder / "other.png").exists()
