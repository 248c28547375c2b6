"""Names and hashes of extension files, recorded in models and runs that need them."""

import hashlib
import inspect
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from archetype.errors import ChangedExtension, SpecError
from archetype.spec.base import Spec
from archetype.spec.kinds import Part, kinds_from_outside, registered_kind

SHOWN = 12  # characters of a hash in a message


class Extension(BaseModel, frozen=True):
    """Extension file, with the parts from it that are in use.

    Attributes:
        name: file name.
        sha256: hash of the file when it was loaded; empty for parts defined without a file.
        kinds: the parts in use, as Role.kind.
    """

    name: str
    sha256: str
    kinds: tuple[str, ...]

    def check(self, place: str) -> None:
        """Check that the parts of the extension are registered, and that its file has not changed.

        Args:
            place: the file that needs the extension, for messages.

        Raises:
            SpecError: parts are missing; extensions are code, and are never loaded automatically.

        Warns:
            ChangedExtension: the file has changed.
        """
        if missing := sorted({kind for kind in self.kinds if registered_kind(kind) is None}):
            digest = f" (sha256 {self.sha256[:SHOWN]}...)" if self.sha256 else ""
            cause = f"needs {', '.join(missing)} of the extension {self.name}{digest}, which is not loaded"
            raise SpecError(place, cause, f"pass --extension {self.name} if you trust that file")
        if change := self.change():
            warnings.warn(ChangedExtension(f"{place}: {change}: what it computes may differ"), stacklevel=2)

    def change(self) -> str:
        """Return how the loaded file differs from the recorded one; empty if they are equal."""
        for cls in filter(None, map(registered_kind, self.kinds if self.sha256 else ())):
            now = source_of(cls).sha256
            if now != self.sha256:
                now = f"sha256 {now[:SHOWN]}... now" if now else "no file now"
                return f"the extension {self.name} was edited (sha256 {self.sha256[:SHOWN]}... before, {now})"
        return ""


class Source(NamedTuple):
    """Name and hash of a file."""

    name: str
    sha256: str


def extensions_of(specs: Iterable[Spec | None]) -> list[Extension]:
    """Return the extensions whose parts are used in some specifications."""
    kinds: dict[Source, set[str]] = {}
    for cls in kinds_from_outside(tuple(specs)):
        names = (f"{role.__name__}.{cls.model_fields['kind'].default}" for role in cls.roles())
        kinds.setdefault(source_of(cls), set()).update(names)
    return [Extension(**source._asdict(), kinds=tuple(sorted(names))) for source, names in sorted(kinds.items())]


def source_of(cls: type[Part]) -> Source:
    """Return the file that defines a part, with the hash that it had when it was loaded."""
    module = sys.modules.get(cls.__module__)
    try:
        file = Path(inspect.getsourcefile(module) or "") if module else Path()
        sha256 = getattr(module, "__sha256__", "") or hashlib.sha256(file.read_bytes()).hexdigest()
        return Source(file.name, sha256)
    except (TypeError, OSError):  # notebooks have no file
        return Source(cls.__module__, "")
