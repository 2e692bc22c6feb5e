"""The stages for motions with impacts: the search and its surface on losses in closed form, and simulated tosses as a whole."""

import dataclasses
import importlib
import inspect
import os
import pathlib
import sys
import types

import numpy as np
import pytest

from trajopt.dynamics import RigidContact, System
from trajopt.estimation import Encoder, Recording, examples, flight, identify, read_tosses
from trajopt.estimation.impacts import Search, chosen, response_surface, search
from trajopt.estimation.packing import guessed_firsts
from trajopt.estimation.parameters import unknowns
from trajopt.estimation.prediction import Predictor
from trajopt.estimation.sensors import check_sensors
from trajopt.estimation.uncertainty import quantile
from trajopt.models import load_model_from_string

START = Search(np.zeros(2), 1.0, 1.0, 20 * 300)  # of 20 recordings, rated at 300 points
CURVATURE = np.array([[2.0, 0.5], [0.5, 1.0]])


@dataclasses.dataclass(frozen=True)
class Quadratics:
    """Losses 1/2 (z - c_j)^T H_j (z - c_j) of 50 recordings, in place of `WholeMotions`."""

    H: np.ndarray
    c: np.ndarray

    @property
    def recordings(self) -> int:
        return len(self.c)

    def losses(self, z, recordings=None):
        e = z[:, None] - self.c
        losses = 0.5 * np.einsum("pri,rij,prj->pr", e, self.H, e)
        return losses if recordings is None else losses[:, recordings]

    def merit(self, losses):
        return losses.mean(1)


def test_the_surface_of_quadratic_losses_is_exact():
    rng = np.random.default_rng(0)
    H = CURVATURE + 0.1 * np.eye(2) * rng.normal(size=(50, 1, 1))
    c = np.array([0.2, -0.1]) + 0.3 * rng.normal(size=(50, 2))
    best = np.linalg.solve(H.sum(0), np.einsum("rij,rj->i", H, c))
    surface = inspect.unwrap(response_surface)(Quadratics(H, c), START, np.arange(20), 0)
    np.testing.assert_allclose(surface.z, best, atol=1e-9)
    left = Quadratics(H, c).losses(best[None]).mean()  # information is in units of the loss that is left
    np.testing.assert_allclose(surface.information.S * left, H, atol=1e-8)
    np.testing.assert_allclose(surface.information.s.sum(0), 0.0, atol=1e-8)
    assert surface.explained == pytest.approx(1.0)
    sd = np.sqrt(np.diag(surface.information.covariance(np.ones(2, bool))))
    np.testing.assert_allclose(sd, 0.3 / np.sqrt(50), rtol=0.3)


@dataclasses.dataclass(frozen=True)
class Rippled(Quadratics):
    """The same with ripples, of deviation 0.3 in each recording, which are longer than the last generation of the search, and
    raised by as much, so that no loss is negative on the mean."""

    waves: np.ndarray  # (R, 40, 2)
    phases: np.ndarray  # (R, 40)
    origin = np.zeros(2)
    basis = np.eye(2)
    predictor = types.SimpleNamespace(unknowns=types.SimpleNamespace(scale=np.ones(2)))

    def theta(self, z):
        return z

    def losses(self, z, recordings=None):
        ripples = np.cos(np.einsum("pk,rwk->prw", z, self.waves) + self.phases).sum(2) * 0.3 * np.sqrt(2 / 40)
        losses = super().losses(z) + 0.3 + ripples
        return losses if recordings is None else losses[:, recordings]


def test_intervals_hold_where_ripples_end_the_search():
    rng, truth, errors, narrow = np.random.default_rng(1), np.array([0.3, -0.4]), [], []
    for seed in range(40):
        H = np.tile(0.3 * CURVATURE, (10, 1, 1))
        c = truth + 0.3 * rng.normal(size=(10, 2))
        motions = Rippled(H, c, 12.0 * rng.normal(size=(10, 40, 2)), 2 * np.pi * rng.random((10, 40)))
        end = search(motions, np.arange(10), 300, seed)
        surface = inspect.unwrap(response_surface)(motions, end, np.arange(10), seed)
        for list_, information in (
            (errors, surface.information),
            (narrow, dataclasses.replace(surface.information, ends=None)),
        ):
            sd = np.sqrt(np.diag(information.covariance(np.ones(2, bool))))
            list_.append((surface.z - truth) / (quantile(9.0) * sd))
    share, without = np.mean(np.abs(errors) < 1), np.mean(np.abs(narrow) < 1)
    assert share > 0.85, share
    assert without < 0.8, without


def test_a_draw_of_recordings():
    assert chosen(5, 10, 0).tolist() == [0, 1, 2, 3, 4]
    few = chosen(50, 10, 0)
    assert few.size == 10 == np.unique(few).size and few.max() < 50


def test_a_bounce_between_two_samples_ends_the_flight():
    """A ball at 30 Hz: it bounces midway between two samples, 4 cm above the floor and more in each."""
    scene = """<mujoco><worldbody><geom type="plane" size="5 5 0.1"/><body><joint name="height" type="slide" axis="0 0 1"/>
      <geom type="sphere" size="0.05" mass="0.1"/></body></worldbody></mujoco>"""
    system, bounce = System(load_model_from_string(scene), 1 / 120, RigidContact()), 9.5 / 30
    t = np.arange(0, 0.6, 1 / 30)
    gap = np.where(
        t < bounce, 0.5 * 9.81 * (bounce**2 - t**2), 0.8 * 9.81 * bounce * (t - bounce) - 0.5 * 9.81 * (t - bounce) ** 2
    )
    recording = Recording("ball", {"height": (t, 0.05 + gap[:, None])})
    sensors = check_sensors([Encoder("height", noise=1e-3)], system.model)
    predictor = Predictor(system, sensors, unknowns(system.model, sensors, ["restitution"]))
    until, enough = flight.free_until(predictor, [recording], guessed_firsts(system, [recording], sensors))
    assert bounce - 2.5 / 30 < until[0] < bounce and enough[0]


@pytest.mark.slow
def test_simulated_tosses():
    example = examples.simulate("tosses", 0)
    fit = identify(example.system, example.recordings, example.parameters, example.sensors)
    assert fit.method == "staged" and "impacts in" in fit.reason
    assert np.all(np.abs(fit.values - example.truth) < 4.5 * fit.deviations)
    assert fit.deviations[0] < 0.02 and fit.deviations[1] < 0.1 and np.all(fit.deviations[2:] < 2e-3)
    assert np.all((fit.intervals[:, 0] < fit.values) & (fit.values < fit.intervals[:, 1]))


@pytest.mark.slow
@pytest.mark.skipif("TRAJOPT_TOSSES" not in os.environ, reason="TRAJOPT_TOSSES: the archive of the recorded tosses")
def test_recorded_tosses():
    """Gravity, centre of mass and friction of recordings that were not made here (docs/notes/validation/tosses.md)."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
    tosses = importlib.import_module("tosses")
    fit = tosses.fitted(read_tosses(os.environ["TRAJOPT_TOSSES"], range(40)), 1 / 296)
    assert abs(fit["gravity z"] + 9.61) < 0.02 and abs(fit["centre of mass z of cube"] - 5e-3) < 2.5e-3
    assert (
        0.15 < fit["friction"] * fit["impact_friction"] < 0.19 and 0.18 < fit["friction"] < 0.25
    )  # in impacts, and sliding
