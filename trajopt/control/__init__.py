"""Control in closed loop: a horizon that recedes, and the plants that it drives; a plan taken again in MuJoCo.

horizon = control.RecedingHorizon(problem, solvers.iLQR(), control.MujocoPlant.from_file(path), period=0.005)
recording = horizon.run(10.0, pushes=[control.Push("trunk", (60.0, 0.0, 0.0), start=1.0)])
replay = control.replay_in_mujoco(problem, solution)
"""

from trajopt.control.controller import Controller
from trajopt.control.mujoco_plant import MujocoPlant
from trajopt.control.plants import Plant, Push, SystemPlant
from trajopt.control.receding_horizon import RecedingHorizon
from trajopt.control.recording import Recording
from trajopt.control.replay import Replay, replay_in_mujoco

__all__ = [
    "Controller", "MujocoPlant", "Plant", "Push", "RecedingHorizon", "Recording", "Replay", "SystemPlant", "replay_in_mujoco",
]  # fmt: skip
