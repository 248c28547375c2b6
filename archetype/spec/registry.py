"""The one registry: a kind's folder, and what the files of that folder provide.

Every kind of part and of model has a folder below `archetype/parts` or `archetype/models`. Its `spec.py` declares the
kind, and each further file is a capability: `module.py` computes it, `cost.py` counts it, and so on. The file of a
capability is imported when somebody first asks for it, so that costs are counted without torch. What serves every
member of a role is provided for the role's own class, in the folder with the role's name.

A kind from outside provides the same by `archetype.register`, or has a folder of this form of its own.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")

PROVIDED: dict[tuple[str, type], Any] = {}
_loading = RLock()  # threads that import the same folders in other orders would see them half imported


def load_kinds() -> tuple[str, ...]:
    """Import the `spec.py` of every folder, once, so that all kinds are known by name.

    Returns:
        Names of the packages, one for each folder.
    """
    with _loading:
        return _load_kinds()


@cache
def _load_kinds() -> tuple[str, ...]:
    packages = []
    for above in ("archetype.parts", "archetype.models"):
        folders = (f"{above}.{info.name}" for info in iter_modules(import_module(above).__path__) if info.ispkg)
        packages += [folder for folder in folders if _import_file(folder, "spec")]
    return tuple(packages)


def provides(capability: str, *kinds: type) -> Callable[[T], T]:
    """Class or function decorator: this is what some kinds, and classes derived from them, have as a capability.

    Args:
        capability: name of the file in which it is looked for, such as `module` or `cost`.
        kinds: classes of a specification's parts; of `parallel`, those of the modules that compute them.
    """

    def register(provided: T) -> T:
        PROVIDED.update({(capability, kind): provided for kind in kinds})
        return provided

    return register


def provided(capability: str, kind: type) -> Any | None:
    """Return what a kind, or the nearest class that it is derived from, has as a capability; None where none has it."""
    for base in kind.__mro__:
        if (folder := _folder(base)) is not None:
            _import_file(folder, capability)
        if (capability, base) in PROVIDED:
            return PROVIDED[capability, base]
    return None


def providers(capability: str) -> Iterator[tuple[type, Any]]:
    """Every kind of the package that has a capability, with what it has."""
    for folder in load_kinds():
        _import_file(folder, capability)
    yield from ((kind, value) for (name, kind), value in list(PROVIDED.items()) if name == capability)


@cache
def _folder(kind: type) -> str | None:
    """The package with the files of a kind, or of what all members of a role share."""
    package, _, file = kind.__module__.rpartition(".")
    if package == "archetype.roles":
        return f"archetype.parts.{file}" if find_spec(f"archetype.parts.{file}") else None
    return package if file in ("spec", "module") and package and hasattr(sys.modules.get(package), "__path__") else None


@cache
def _import_file(package: str, name: str) -> bool:
    """Import one file of a folder; whether there is one."""
    if find_spec(f"{package}.{name}") is None:
        return False
    import_module(f"{package}.{name}")
    return True
