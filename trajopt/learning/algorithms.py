"""The algorithms by name, with the options that suit a task."""

from typing import Any

from trajopt.errors import OptionError, UnknownNameError
from trajopt.learning.algorithm import Algorithm
from trajopt.learning.ppo import PPO
from trajopt.learning.shac import SHAC
from trajopt.learning.tasks import task
from trajopt.names import closest

ALGORITHMS: dict[str, type[Algorithm]] = {PPO.name: PPO, SHAC.name: SHAC}


def algorithm(name: str, for_task: str | None = None, **options: Any) -> Algorithm:
    """The algorithm of this name; options: fields that differ from those that suit the task.

    Raises `UnknownNameError` or `OptionError`.
    """
    if name not in ALGORITHMS:
        raise UnknownNameError(f"there is no algorithm '{name}'{closest(name, ALGORITHMS)}")
    suited = {} if for_task is None else dict(task(for_task).options.get(name, {}))
    try:
        return ALGORITHMS[name](**suited | options)
    except TypeError as error:
        raise OptionError(f"{name}: {error}") from None
