"""Keys of config.json that the classes of transformers read, by model type and release, in `class_keys.json`.

The same key means something in one class and nothing in another, and in one release and not in another. The file is
made by `python -m tests.helpers.class_keys` from the sources of the installed transformers, whose rows are kept beside
those of other releases; a test fails while they differ.
"""

import json
import re
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from archetype.errors import MAX_MESSAGE, ReadOtherwise, one_line
from archetype.families.config import BOOKKEEPING

FILE = Path(__file__).with_name("class_keys.json")
DERIVED = "(derived)"  # a default that the class makes of other keys
# Keys that change no output of a finished model, whichever class reads them.
OF_TRAINING = frozenset({
    "initializer_range", "init_std", "pretraining_tp", "output_router_logits", "router_jitter_noise",
})  # fmt: skip

Release = tuple[int, int]  # major and minor number


class ClassKeys(NamedTuple):
    """What is known of the classes of one model type.

    Attributes:
        classes: what the names of these classes start with.
        defaults: each key that they read, and what it is where a file has none: `DERIVED` where it follows from others.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, Any]


def tables(data: Any) -> dict[Release, dict[str, Any]]:
    """The rows of each release, oldest first, of a file that holds the newest whole and what differs in the others."""
    older = {release_of(text): rows for text, rows in data["older"].items()}
    of_all = older | {release_of(data["version"]): {}}
    return {
        release: {kind: row for kind, row in (data["types"] | of_all[release]).items() if row is not None}
        for release in sorted(of_all)
    }


@cache
def class_keys(release: Release | None = None) -> dict[str, ClassKeys]:
    """What is known of a release, by model type (absent: of the newest); of one without rows the nearest before it."""
    known = tables(json.loads(FILE.read_bytes()))
    rows = known[max(known) if release is None else nearest(known, release)]
    return {name: ClassKeys(tuple(classes), keys) for name, (classes, keys) in rows.items()}


@cache
def releases() -> tuple[Release, ...]:
    """The releases whose rows are known, oldest first."""
    return tuple(tables(json.loads(FILE.read_bytes())))


def nearest(known: Collection[Release], release: Release) -> Release:
    """The newest release of those known that is not after this one; the oldest where all are."""
    return max((one for one in known if one <= release), default=min(known))


def keys_read(values: Mapping[str, Any], model_type: str | None = None) -> Mapping[str, Any] | None:
    """The keys that the class of a config.json reads in the newest release that is known, with their defaults.

    Args:
        values: of config.json.
        model_type: of the part that is meant (absent: the file's own).

    Returns:
        None where nobody knows: the type, or the class in `architectures`, is not one of transformers'.
    """
    row = class_keys().get(str(values.get("model_type")))
    classes = values.get("architectures")
    if row is None or (isinstance(classes, list) and classes and not _is_one_of(str(classes[0]), row.classes)):
        return None
    row = row if model_type is None else class_keys().get(model_type)
    return None if row is None else row.defaults


def warn_of_releases(values: Mapping[str, Any], place: str, is_registered: bool = False) -> None:
    """Say where a config.json may mean something else to another release than it means here.

    Args:
        values: of config.json.
        place: the file, for messages.
        is_registered: whether its family is, which refuses a key that it does not know in a later file.

    Warns:
        ReadOtherwise: the installed transformers reads a key that the newest release known here does not, or the other
            way; or the file is of a later release, and has keys that no class of the newest known one reads.
    """
    text = values.get("text_config")
    values = text | {"transformers_version": values.get("transformers_version")} if isinstance(text, dict) else values
    kind, newest = str(values.get("model_type")), releases()[-1]
    if (read := keys_read(values)) is None:
        return
    if (installed := _installed()) is not None and releases()[0] <= release_of(installed) < newest:
        before = class_keys(release_of(installed)).get(kind)
        said = "" if before is None else ", ".join(sorted(values.keys() & (before.defaults.keys() ^ read.keys())))
        if said:
            cause = f"transformers {dotted(newest)} reads {said} otherwise than {installed}, which is installed"
            _warn(f"{place}: {cause}; the model is what the {kind} classes of {dotted(newest)} make of it")
    unread = sorted(values.keys() - read.keys() - BOOKKEEPING - OF_TRAINING)
    if is_later(values) and unread and not is_registered:
        cause = f"is of transformers {values['transformers_version']}, and is read as {dotted(newest)} reads it"
        _warn(f"{place}: {cause}, the newest known here, which makes nothing of {', '.join(unread)}")


def is_later(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a later release than any whose keys are known, so that its class may read more."""
    return release_of(values.get("transformers_version")) > releases()[-1]


def release_of(text: Any) -> Release:
    """Major and minor number; zeros for what is no version."""
    match = re.match(r"(\d+)\.(\d+)", str(text))
    return (0, 0) if match is None else (int(match[1]), int(match[2]))


def dotted(release: Release) -> str:
    """As it is written."""
    return ".".join(map(str, release))


@cache
def _installed() -> str | None:
    """The version of the installed transformers, which is not imported."""
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def _warn(text: str) -> None:
    warnings.warn(ReadOtherwise(one_line(text, MAX_MESSAGE)), stacklevel=3)


def _is_one_of(name: str, starts: tuple[str, ...]) -> bool:
    """Whether a class is a type's, in whatever case (MPT was published as MPTForCausalLM)."""
    return name.lower().startswith(tuple(start.lower() for start in starts))
