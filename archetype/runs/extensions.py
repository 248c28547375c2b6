"""Record of the extensions that a run directory needs: file names and hashes. This module loads no extension."""

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from archetype.errors import CheckpointError, SpecError
from archetype.io import atomic
from archetype.io.files import MAX_CONFIG_BYTES, check_regular, read_bytes
from archetype.spec.base import Spec
from archetype.spec.extensions import Extension, extensions_of

FILE = "extensions.json"


def write_extensions(folder: Path, specs: Iterable[Spec | None]) -> None:
    """Record the extensions that a run directory needs, if any."""
    if extensions := extensions_of(specs):
        data = [extension.model_dump() for extension in extensions]
        atomic.write_bytes(folder / FILE, (json.dumps(data, indent=2) + "\n").encode())


def read_extensions(folder: Path) -> list[Extension]:
    """Read the extensions recorded in a folder."""
    file = folder / FILE
    check_regular(file, CheckpointError)
    if not file.exists():
        return []
    data = read_bytes(file, MAX_CONFIG_BYTES, CheckpointError)
    try:
        return TypeAdapter(list[Extension]).validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(str(file), f"is not a list of extensions: {first['msg']}", "restore the file") from None


def check_extensions(folder: Path) -> None:
    """Check that all extensions recorded in a folder are loaded.

    Raises:
        CheckpointError: an extension is missing; extensions are never loaded automatically.

    Warns:
        ChangedExtension: the file of an extension has changed since the folder was written.
    """
    for extension in read_extensions(folder):
        try:
            extension.check(str(folder))
        except SpecError as error:
            raise CheckpointError(error.place, error.cause, error.remedy) from None


def refuse_changes(folder: Path) -> None:
    """Raise a CheckpointError unless all recorded extensions are loaded and unchanged."""
    for extension in read_extensions(folder):
        if change := extension.change():
            raise CheckpointError(str(folder), change, "restore it, or pass --allow-changes")
