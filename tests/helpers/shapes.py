"""Checks of array shapes that cost nothing before the first call that is checked: preparing all takes seconds."""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def at_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with types checked, for `install_import_hook`."""
    checked: Callable[..., Any] | None = None

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal checked
        if checked is None:
            checked = beartype(function)
        return checked(*arguments, **named)

    return call
