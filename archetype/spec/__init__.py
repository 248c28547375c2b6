"""Specifications: frozen, closed data that says WHAT an architecture is. Nothing here computes or imports torch.

This folder knows what a node of a specification is. The kinds of parts and models declare themselves, each in its own
folder; for users all of them can be imported from here: `from archetype.spec import Attention, Decoder, parse`.
"""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def _public() -> dict[str, str]:
    """The module of every public name of specifications."""
    from archetype.spec.registry import load_kinds

    folders = (f"{folder}.spec" for folder in load_kinds())
    own = (f"{above}.{info.name}" for above in (__name__, "archetype.roles") for info in _modules_in(above))
    others = ("models.spec", "models.file", "models.stack.layers", "models.initialization_spec")
    modules = [*own, *folders, *(f"archetype.{name}" for name in others), "archetype.estimate.width"]
    return {name: module for module in modules for name in getattr(import_module(module), "__all__", ())}


def _modules_in(package: str) -> Any:
    from pkgutil import iter_modules

    return iter_modules(import_module(package).__path__)


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in _public():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_public()[name]), name)


def __dir__() -> list[str]:
    return sorted(_public())
