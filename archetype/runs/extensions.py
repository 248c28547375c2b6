"""Which extensions a run directory needs: files whose parts it names, by name and hash. None is loaded here."""

import hashlib
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from archetype.errors import CheckpointError
from archetype.io import atomic
from archetype.io.files import MAX_CONFIG_BYTES, check_regular, read_bytes
from archetype.spec.base import Spec
from archetype.spec.kinds import kinds_from_outside, missing_kinds

FILE = "extensions.json"


class Extension(BaseModel, frozen=True):
    """A file with parts from outside.

    Attributes:
        name: of the file.
        sha256: of its contents; empty where the parts were defined without a file.
        kinds: the parts that are used of it, as role.kind.
    """

    name: str
    sha256: str
    kinds: tuple[str, ...]


def extensions_of(specs: Iterable[Spec | None]) -> list[Extension]:
    """The extensions whose parts some specifications use."""
    kinds: dict[str, set[str]] = {}
    for cls in kinds_from_outside(tuple(specs)):
        names = (f"{role.__name__}.{cls.model_fields['kind'].default}" for role in cls.roles())
        kinds.setdefault(cls.__module__, set()).update(names)
    return [Extension(**_source(module), kinds=tuple(sorted(names))) for module, names in sorted(kinds.items())]


def write_extensions(folder: Path, specs: Iterable[Spec | None]) -> None:
    """Record the extensions that a run directory needs, where it needs any."""
    if extensions := extensions_of(specs):
        data = [extension.model_dump() for extension in extensions]
        atomic.write_bytes(folder / FILE, (json.dumps(data, indent=2) + "\n").encode())


def check_extensions(folder: Path) -> None:
    """Check that every part which a folder records as coming from outside is registered.

    Raises:
        CheckpointError: names the extension that is missing; nothing of it is ever loaded by itself.
    """
    file = folder / FILE
    check_regular(file, CheckpointError)
    if not file.exists():
        return
    data = read_bytes(file, MAX_CONFIG_BYTES, CheckpointError)
    try:
        extensions = TypeAdapter(list[Extension]).validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(str(file), f"is not a list of extensions: {first['msg']}", "restore the file") from None
    for extension in extensions:
        if missing := missing_kinds(extension.kinds):
            digest = f" (sha256 {extension.sha256[:12]}...)" if extension.sha256 else ""
            cause = f"needs {', '.join(missing)} of the extension {extension.name}{digest}, which is not loaded"
            raise CheckpointError(str(folder), cause, f"give --extension {extension.name} if you trust that file")


def _source(module: str) -> dict[str, str]:
    """Name and hash of the file that a module was loaded from."""
    try:
        file = Path(inspect.getsourcefile(sys.modules[module]) or "")
        return {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    except (KeyError, TypeError, OSError):  # a notebook has no file
        return {"name": module, "sha256": ""}
