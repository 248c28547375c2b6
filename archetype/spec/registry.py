"""Registry of the folders of kinds and of the capabilities that their files provide.

Every kind of part and model has a folder in `archetype/parts` or `archetype/models`. Its `spec.py` declares the kind,
and each other file is a capability: `module.py` computes it, `cost.py` counts it, and so on. The file of a capability
is imported on first use, so that costs are counted without torch. A capability that all kinds of a role share is
registered for the class of the role, in the folder with the role's name.

Kinds of extensions are registered by `archetype.register`, or have a folder of the same form.
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
_loading = RLock()  # concurrent imports in different orders would see partly imported folders


def load_kinds() -> tuple[str, ...]:
    """Import the `spec.py` of every folder once, so that all kinds are registered. Return the names of the packages."""
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
    """Register a capability, such as `module` or `cost`, for some kinds and for classes derived from them.

    The capability has the name of the file that provides it. Kinds are classes of parts; for `parallel`, of modules.
    """

    def register(provided: T) -> T:
        PROVIDED.update({(capability, kind): provided for kind in kinds})
        return provided

    return register


def provided(capability: str, kind: type) -> Any | None:
    """Return the capability of a kind, or of its nearest base class; None if there is none."""
    for base in kind.__mro__:
        if (folder := _folder(base)) is not None:
            _import_file(folder, capability)
        if (capability, base) in PROVIDED:
            return PROVIDED[capability, base]
    return None


def providers(capability: str) -> Iterator[tuple[type, Any]]:
    """Yield (kind, value) for every kind that has a capability."""
    for folder in load_kinds():
        _import_file(folder, capability)
    yield from ((kind, value) for (name, kind), value in list(PROVIDED.items()) if name == capability)


@cache
def _folder(kind: type) -> str | None:
    # the package with the capabilities of a kind, or of a role
    package, _, file = kind.__module__.rpartition(".")
    if package == "archetype.roles":
        return f"archetype.parts.{file}" if find_spec(f"archetype.parts.{file}") else None
    return package if file in ("spec", "module") and package and hasattr(sys.modules.get(package), "__path__") else None


@cache
def _import_file(package: str, name: str) -> bool:
    # returns whether the file exists
    if find_spec(f"{package}.{name}") is None:
        return False
    import_module(f"{package}.{name}")
    return True
