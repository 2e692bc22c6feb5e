"""Learning: environments made of a `System`, policies trained in them by PPO and SHAC, and whether they hold elsewhere.

    environment = learning.tasks.environment("cartpole-swingup")
    training = learning.train(environment, learning.SHAC(), samples=200_000)

`gymnasium.make("trajopt.learning:trajopt/CartpoleSwingup-v0")` imports this package, which tells gymnasium of its tasks where
gymnasium is installed.
"""

import importlib.util

from trajopt.learning import tasks
from trajopt.learning.algorithms import ALGORITHMS, algorithm
from trajopt.learning.draws import around, within
from trajopt.learning.environment import Environment, EnvironmentState, Moment, Outcome
from trajopt.learning.episodes import episode
from trajopt.learning.networks import Policy
from trajopt.learning.ppo import PPO
from trajopt.learning.rollouts import play
from trajopt.learning.shac import SHAC
from trajopt.learning.trainer import Training, load_policy, save_policy, train

if importlib.util.find_spec("gymnasium") is not None:
    from trajopt.learning.gymnasium_environments import register

    register()

__all__ = [
    "ALGORITHMS", "PPO", "SHAC", "Environment", "EnvironmentState", "Moment", "Outcome", "Policy", "Training", "algorithm",
    "around", "episode", "load_policy", "play", "save_policy", "tasks", "train", "within",
]  # fmt: skip
