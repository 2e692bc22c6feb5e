"""The runtime type checker of the test suite: beartype on functions, nothing on constructors.

Constructors are left out because JAX rebuilds registered dataclasses during tree operations with leaves that are not
arrays (None, bare objects, batch axes); every function that receives the dataclass's arrays still checks them.
"""

from beartype import BeartypeConf, beartype

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do where a float is asked for


def check(function):
    """`function` with its annotations checked at every call, unless it is a constructor."""
    return function if function.__name__ == "__init__" else _checked(function)
