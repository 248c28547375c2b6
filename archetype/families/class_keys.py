"""Keys of config.json that transformers classes read, by model type and release, from `class_keys.json`.

The keys differ between classes and releases. `python -m tests.helpers.class_keys` writes the file from the sources of
the installed transformers and keeps the rows of other releases. A test fails while the file is out of date.
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
DERIVED = "(derived)"  # a default that the class computes from other keys
# Keys that do not affect the outputs of a trained model.
OF_TRAINING = frozenset({
    "initializer_range", "init_std", "pretraining_tp", "output_router_logits", "router_jitter_noise",
})

Release = tuple[int, int]  # major and minor number


class ClassKeys(NamedTuple):
    """transformers classes of one model type.

    Attributes:
        classes: prefixes of the class names.
        defaults: default of each key that the classes read; `DERIVED` if it is computed from other keys.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, Any]


def tables(data: Any) -> dict[Release, dict[str, Any]]:
    """Return the rows of each release, oldest first. The file stores older rows as differences from the newest."""
    older = {release_of(text): rows for text, rows in data["older"].items()}
    of_all = older | {release_of(data["version"]): {}}
    return {
        release: {kind: row for kind, row in (data["types"] | of_all[release]).items() if row is not None}
        for release in sorted(of_all)
    }


@cache
def class_keys(release: Release | None = None) -> dict[str, ClassKeys]:
    known = tables(json.loads(FILE.read_bytes()))
    # an unknown release has the rows of the nearest one before it
    rows = known[max(known) if release is None else nearest(known, release)]
    return {name: ClassKeys(tuple(classes), keys) for name, (classes, keys) in rows.items()}


@cache
def releases() -> tuple[Release, ...]:
    return tuple(tables(json.loads(FILE.read_bytes())))


def nearest(known: Collection[Release], release: Release) -> Release:
    # the newest up to this one, or the oldest if all are later
    return max((candidate for candidate in known if candidate <= release), default=min(known))


def keys_read(values: Mapping[str, Any], model_type: str | None = None) -> Mapping[str, Any] | None:
    """Return the keys, with defaults, that the class of a config.json reads in the newest known release.

    Args:
        model_type: model type of a sub-model, whose class reads its section (default: the file's model type).

    Returns:
        The keys; None if transformers does not have the model type, or the class in `architectures`.
    """
    of_file = str(values.get("model_type"))
    kind = model_type or of_file
    # the table has no rows for most models that also read images, whose text is read by the class of its own type
    if not is_class_of(values) and (kind == of_file or of_file in class_keys()):
        return None
    row = class_keys().get(kind)
    return None if row is None else row.defaults


def is_class_of(values: Mapping[str, Any]) -> bool:
    """Return whether transformers has the model type and the class named in the file belongs to it."""
    row, classes = class_keys().get(str(values.get("model_type"))), values.get("architectures")
    if row is None:
        return False
    return not (isinstance(classes, list) and classes) or _is_one_of(str(classes[0]), row.classes)


def warn_of_releases(values: Mapping[str, Any], place: str, is_registered: bool = False) -> None:
    """Warn if another release of transformers may read a config.json differently.

    Args:
        place: path of the file, for messages.
        is_registered: whether the family is registered, since registered families refuse unknown keys of later files.

    Warns:
        ReadOtherwise: the installed transformers and the newest known release read different keys, or the file is from
            a later release and has unknown keys.
    """
    text = values.get("text_config")
    values = text | {"transformers_version": values.get("transformers_version")} if isinstance(text, dict) else values
    kind, newest = str(values.get("model_type")), releases()[-1]
    if (read := keys_read(values)) is None:
        return
    if (installed := _installed()) is not None and releases()[0] <= release_of(installed) < newest:
        before = class_keys(release_of(installed)).get(kind)
        differing = "" if before is None else ", ".join(sorted(values.keys() & (before.defaults.keys() ^ read.keys())))
        if differing:
            cause = f"the installed transformers {installed} and {dotted(newest)} read {differing} differently"
            _warn(f"{place}: {cause}; it is read as by the {kind} classes of {dotted(newest)}")
    unread = sorted(values.keys() - read.keys() - BOOKKEEPING - OF_TRAINING)
    if is_later(values) and unread and not is_registered:
        cause = f"was written by transformers {values['transformers_version']} and is read as by {dotted(newest)}"
        _warn(f"{place}: {cause}, the newest known release, which ignores {', '.join(unread)}")


def is_later(values: Mapping[str, Any]) -> bool:
    """Return whether a config.json is from a later release than all known ones. Its class may read more keys."""
    return release_of(values.get("transformers_version")) > releases()[-1]


def release_of(text: Any) -> Release:
    match = re.match(r"(\d+)\.(\d+)", str(text))
    # before all known releases
    return (0, 0) if match is None else (int(match[1]), int(match[2]))


def dotted(release: Release) -> str:
    return ".".join(map(str, release))


@cache
def _installed() -> str | None:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def _warn(text: str) -> None:
    warnings.warn(ReadOtherwise(one_line(text, MAX_MESSAGE)), stacklevel=3)


def _is_one_of(name: str, starts: tuple[str, ...]) -> bool:
    # ignoring case: MPT was published as MPTForCausalLM
    return name.lower().startswith(tuple(start.lower() for start in starts))
