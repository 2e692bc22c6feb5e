"""Uneven ground in place of a model's floor: a grid of heights, or a function with parameters."""

import dataclasses
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from trajopt.dynamics.model import Model, ShapeType, Surface
from trajopt.errors import ModelError, OptionError, UnknownNameError
from trajopt.names import closest


def on_terrain(
    model: Model,
    ground: Float[ArrayLike, "..."] | Callable[[Array, Array, Array], Array],
    *,
    half_extents: tuple[float, float] | None = None,
    parameters: Float[ArrayLike, " k"] | Sequence[float] = (),
    floor: str | None = None,
) -> Model:
    """The model with the ground $z = h(x, y)$, m, where its plane `floor` is (default: its only plane).

    Pairs, friction, restitution and the placement of the plane are kept.

    - `ground` an array (rows, columns) of heights over [-x, x] times [-y, y], `half_extents` = (x, y), a row for each y:
      interpolated smoothly, level beyond the border;
    - `ground` a function (x, y, parameters) -> height, twice differentiable, written with jax.numpy. Systems share compiled
      programs if the function is the same object.

    Heights, or parameters, are the leaf `terrain` of the model, by which steps can be differentiated. Raises `ModelError` for
    heights that are not finite, `OptionError` and `UnknownNameError` for wrong arguments.
    """
    top = model.topology
    index = _floor(model, floor)
    if callable(ground):
        numbers = np.asarray(parameters, float).reshape(-1)
        surface = Surface(len(model.terrain), len(numbers), function=ground)
        _check_function(ground, numbers)
        size = np.zeros(3)
    else:
        heights = np.asarray(ground, float)
        if heights.ndim != 2 or min(heights.shape) < 2:
            raise OptionError(f"ground has shape {heights.shape}, expected at least 2 rows (y) and 2 columns (x)")
        if half_extents is None or len(half_extents) != 2 or not min(half_extents) > 0:
            raise OptionError(
                f"half_extents is {half_extents}, expected two positive lengths (x, y) for a grid of heights"
            )
        numbers, size = heights.reshape(-1), np.array([*half_extents, np.abs(heights).max()])
        surface = Surface(len(model.terrain), len(numbers), *heights.shape)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        what = "parameter" if callable(ground) else "height"
        raise ModelError(
            f"model '{top.name}': {what} number {bad[0]} of the terrain is {numbers[bad[0]]}; expected finite numbers"
        )
    shapes = list(top.shapes)
    shapes[index] = dataclasses.replace(shapes[index], kind=ShapeType.HEIGHTFIELD, surface=surface)
    shape_size = np.asarray(model.shape_size, float).copy()
    shape_size[index] = size
    return model.replace(
        topology=dataclasses.replace(top, shapes=tuple(shapes)),
        shape_size=shape_size,
        terrain=np.concatenate([np.asarray(model.terrain, float), numbers]),
    )


def _floor(model: Model, name: str | None) -> int:
    shapes = model.topology.shapes
    planes = [k for k, shape in enumerate(shapes) if shape.kind == ShapeType.PLANE]
    if name is None and len(planes) == 1:
        return planes[0]
    names = [shapes[k].name for k in planes]
    if name in names:
        return planes[names.index(name)]
    if name is None:
        what_it_has = (
            f"{len(planes)} planes ({', '.join(names)}): name one by floor="
            if planes
            else "no plane: load it with ground=True"
        )
        raise OptionError(f"the terrain takes the place of a plane, but model '{model.name}' has {what_it_has}")
    raise UnknownNameError(f"model '{model.name}' has no plane '{name}'{closest(name, names)}")


def _check_function(function: Callable, parameters: np.ndarray) -> None:
    at = jnp.zeros(())
    height = np.asarray(function(at, at, jnp.asarray(parameters, at.dtype)))
    if height.shape != () or not np.isfinite(height):
        raise OptionError(f"ground(0, 0, parameters) is {height}, expected one finite height for scalars x and y")
