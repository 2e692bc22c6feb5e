"""Objects that are pickled and copied without what they make again when it is asked for."""

import functools
from typing import Any


class WithoutCaches:
    """Pickled and copied without its cached properties: compiled programs, which belong to one process, and tables."""

    def __getstate__(self) -> dict[str, Any]:
        kind = type(self)
        return {k: v for k, v in vars(self).items() if not isinstance(getattr(kind, k, None), functools.cached_property)}
