"""Checks of array shapes that cost nothing where they would find nothing new."""

from collections.abc import Callable, Hashable
from functools import partial, wraps
from typing import Any

from jaxtyping import config
from jaxtyping import jaxtyped as checked_at_every_call

SEEN: set[Hashable] = set()  # forms of the calls that were checked; each test begins with none


def jaxtyped(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Decorate as jaxtyping does, but prepare the checks at the first call that is checked.

    To prepare all takes seconds. A call is checked unless its test has made one of equal shapes to the same module.
    """
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    if isinstance(function, type):
        return checked_at_every_call(function, typechecker=typechecker)
    from torch import Tensor  # where modules are decorated it is loaded; not in the first process of a run

    checked: Callable[..., Any] | None = None

    def form(value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return value.shape, value.dtype
        return value if isinstance(value, int | str | None) else id(value)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal checked
        if config.jaxtyping_disable:
            return function(*arguments, **named)
        key = (function, *map(form, arguments), *((name, form(value)) for name, value in named.items()))
        if key in SEEN:
            return function(*arguments, **named)
        if checked is None:
            checked = checked_at_every_call(function, typechecker=typechecker)
        result = checked(*arguments, **named)
        SEEN.add(key)
        return result

    return call
