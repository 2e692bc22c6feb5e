"""Training: a resumed one is an uninterrupted one, a reward that is not finite stops it by name, the log, what was learnt."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kills import snapshots
from learning_cases import slider

from trajopt import files
from trajopt.errors import NonFiniteError, OptionError
from trajopt.learning import PPO, SHAC, load_policy, save_policy, train
from trajopt.solvers.loop.checkpoint import Checkpoint

SMALL = {"environments": 4, "length": 4, "hidden": (4,), "critic_hidden": (4,), "minibatches": 2}


class KilledError(Exception):
    pass


def kill_at(update):
    def callback(row):
        if row["update"] == update:
            raise KilledError

    return callback


def without_time(rows):
    return [{key: value for key, value in row.items() if key != "wall_time_s"} for row in rows]


def killed_and_resumed(environment, algorithm, folder):
    options = {"samples": 6 * algorithm.samples, "evaluations": 3, "episodes": 4, "seed": 3}
    whole = train(environment, algorithm, folder=folder / "whole", **options)
    with pytest.raises(KilledError):
        train(environment, algorithm, folder=folder / "killed", callback=kill_at(4), **options)
    again = train(environment, algorithm, folder=folder / "killed", resume=True, **options)
    assert without_time(again.curve) == without_time(whole.curve) and len(whole.curve) == 6
    for one, other in zip(jax.tree.leaves(whole.policy), jax.tree.leaves(again.policy), strict=True):
        np.testing.assert_array_equal(one, other)
    return whole, options


def test_a_killed_training_resumes_to_the_same_curve(tmp_path):
    environment, ppo = slider(), PPO(**SMALL, epochs=2)
    whole, options = killed_and_resumed(environment, ppo, tmp_path)
    rows = list(csv.DictReader((tmp_path / "killed" / "curve.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (tmp_path / "killed" / "curve.jsonl").read_text().splitlines()]
    assert [int(row["update"]) for row in rows] == [1, 2, 3, 4, 5, 6] == [line["update"] for line in lines]
    assert [row["return"] is not None for row in whole.curve] == [False, True] * 3
    with pytest.raises(OptionError, match="seed '3', not '4'"):
        train(environment, ppo, folder=tmp_path / "killed", resume=True, **options | {"seed": 4})
    save_policy(tmp_path / "policy.npz", whole.policy)
    loaded = load_policy(tmp_path / "policy.npz", environment, ppo)
    seen = jnp.array([0.3, -0.1])
    np.testing.assert_array_equal(loaded(seen), whole.policy(seen))


@pytest.mark.slow
def test_a_killed_training_by_gradients_resumes_to_the_same_curve(tmp_path):
    killed_and_resumed(slider(), SHAC(**SMALL, critic_epochs=2), tmp_path)


def test_a_reward_that_is_not_finite_stops_training_by_step_and_term():
    environment = slider(
        reward=lambda before, u, after: {"root": jnp.sqrt(0.55 - after.time), "effort": -(u[0] ** 2)},
    )
    with pytest.raises(NonFiniteError, match="term 'root' of the reward is not finite at step 5 of an episode"):
        train(environment, PPO(**SMALL, epochs=1), samples=200, evaluations=1, episodes=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PPO, SHAC])
def test_the_mass_is_brought_to_the_middle(kind):
    found = train(slider(), kind(environments=16, length=8), samples=60_000, evaluations=10, episodes=16, stop_when_solved=True)
    assert found.success and found.samples_to() == found.curve[-1]["samples"]


def test_options():
    with pytest.raises(OptionError, match="samples is 0"):
        train(slider(), PPO(), samples=0)
    with pytest.raises(OptionError, match="folder is None"):
        train(slider(), PPO(), samples=10, resume=True)


@pytest.mark.slow
def test_wherever_a_training_is_killed_its_checkpoint_and_its_log_are_whole(tmp_path):
    """And it goes on to the same curve, from a kill in the first seconds too."""
    environment, ppo, folder = slider(), PPO(**SMALL, epochs=1), tmp_path / "out"
    options = {"samples": 3 * ppo.samples, "evaluations": 3, "episodes": 4, "checkpoint_every_s": 0.0}
    folder.mkdir()
    with snapshots(folder, tmp_path / "copies") as found:
        whole = train(environment, ppo, folder=folder, **options)
    written = [copy for copy in found if (copy / "checkpoint.npz").exists()]
    before = {path.name for copy in found if copy not in written for path in copy.iterdir()}
    assert all(name.startswith(".") for name in before), "the checkpoint is the first file that is there"
    counts = []
    for copy in written[::3]:
        rows = json.loads(str(Checkpoint(copy / "checkpoint.npz").progress["rows"]))
        assert without_time(rows) == without_time(whole.curve[: len(rows)])
        counts.append(len(rows))
        files.tidy(copy)
        if (copy / "curve.jsonl").exists():  # the last line may be cut short
            lines = [line for line in (copy / "curve.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
            assert [json.loads(line)["update"] for line in lines] == list(range(1, len(lines) + 1)) and len(lines) >= len(rows)
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3}
    again = train(environment, ppo, folder=written[0], resume=True, **options)
    assert without_time(again.curve) == without_time(whole.curve)
