"""Keys of config.json that the classes of transformers read, by model type, in `class_keys.json`.

The same key means something in one class and nothing in another. The file is made by
`python -m tests.helpers.class_keys` from the sources of transformers; a test fails while it differs.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("class_keys.json")
DERIVED = "(derived)"  # a default that the class makes of other keys


class ClassKeys(NamedTuple):
    """What is known of the classes of one model type.

    Attributes:
        classes: what the names of these classes start with.
        defaults: each key that they read, and what it is where a file has none: `DERIVED` where it follows from others.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, Any]


@cache
def _table() -> Any:
    return json.loads(FILE.read_bytes())


@cache
def class_keys() -> dict[str, ClassKeys]:
    """What is known, by model type."""
    return {name: ClassKeys(tuple(classes), keys) for name, (classes, keys) in _table()["types"].items()}


def keys_read(values: Mapping[str, Any], model_type: str | None = None) -> Mapping[str, Any] | None:
    """The keys that the class of a config.json reads, with their defaults.

    Args:
        values: of config.json.
        model_type: of the part that is meant (absent: the file's own).

    Returns:
        None where nobody knows: the type, or the class in `architectures`, is not one of transformers', or the file is
        of a later version, whose classes may read more.
    """
    if not is_class_of(values):
        return None
    if _version(values.get("transformers_version")) > _version(_table()["version"]):
        return None
    row = class_keys().get(str(values.get("model_type")) if model_type is None else model_type)
    return None if row is None else row.defaults


def is_class_of(values: Mapping[str, Any]) -> bool:
    """Whether transformers has the type of a config.json, and the class that it names, if any, is of that type."""
    row, classes = class_keys().get(str(values.get("model_type"))), values.get("architectures")
    if row is None:
        return False
    return not (isinstance(classes, list) and classes) or _is_one_of(str(classes[0]), row.classes)


def _is_one_of(name: str, starts: tuple[str, ...]) -> bool:
    """Whether a class is a type's, in whatever case (MPT was published as MPTForCausalLM)."""
    return name.lower().startswith(tuple(start.lower() for start in starts))


def _version(text: Any) -> tuple[int, ...]:
    """Major and minor number; zeros for what is no version."""
    match = re.match(r"(\d+)\.(\d+)", str(text))
    return (0, 0) if match is None else (int(match[1]), int(match[2]))
