"""Exceptions. Each message names the culprit, what was received, what was expected and the remedy."""


class TrajoptError(Exception):
    """Base class of every error raised on purpose by trajopt."""


class ModelError(TrajoptError):
    """A model file or model description is malformed, incomplete or non-physical."""


class UnknownNameError(TrajoptError, KeyError):
    """A model, problem, solver, frame or option name that does not exist; the message lists the closest ones."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ShapeError(TrajoptError, ValueError):
    """An array has the wrong shape, or entries of the wrong type."""


class NonFiniteError(TrajoptError, ValueError):
    """An array that must be finite holds NaN or infinity."""


class OptionError(TrajoptError, ValueError):
    """An option has a value that is not allowed."""


class RecordingError(TrajoptError, ValueError):
    """A recording is malformed or contradicts itself; the message names recording, channel and time."""


class MissingExtraError(TrajoptError, ImportError):
    """A feature needs an optional dependency; the message gives the one line that installs it."""


class DerivativeError(TrajoptError):
    """A derivative was requested that the chosen gradient mode does not define."""


class ForkError(TrajoptError, RuntimeError):
    """A process was forked from one in which JAX had run, whose threads it lacks."""
