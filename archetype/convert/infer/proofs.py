"""Which readings by names and shapes are proved: by the tests, or by a small model that was compared before.

The types that the tests prove are in `proved.json`, by version of transformers, as `make zoo` writes it. What the
comparison of a small model found (`archetype/convert/proof.py`) is kept in the folder of caches.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from archetype.convert.infer.quirks import LAYOUTS
from archetype.convert.infer.small import make_small
from archetype.errors import ArchetypeError
from archetype.families.class_keys import class_keys, is_class_of
from archetype.families.classes import TEXTS, TOKENS
from archetype.families.config import BOOKKEEPING
from archetype.families.family import Family
from archetype.io import atomic
from archetype.io.cache import cache_folder
from archetype.io.yaml import yaml_value

FILE = Path(__file__).with_name("proved.json")
# Types that other tests prove: DeepSeek-V3's class under the names of Kimi K2 and of Kimi K2.5, which also sees.
ELSEWHERE = {"kimi_k2": "5.23.0", "kimi_k25": "5.23.0"}
TASKS = ((TEXTS, ("texts",)), (TOKENS, ("tokens",)), ("", ("causal", "pairs")))  # by how the name of a class ends


@dataclass(frozen=True)
class Proof:
    """What a reading was compared with, and how it went.

    Attributes:
        by: the library and its version.
        taken: layouts that agree where the assumed ones do not, by name.
        difference: of the logits, the largest, of the largest magnitude; None where the tests have compared them.
        fault: the first module that differs, and by how much; empty where the reading agrees.
        asked: the layouts on which the small model depends; None for all.
    """

    by: str
    taken: Mapping[str, Any] = field(default_factory=dict)
    difference: float | None = None
    fault: str = ""
    asked: tuple[str, ...] | None = None

    def covers(self, layouts: Mapping[str, Any]) -> bool:
        """Whether each of these layouts was compared."""
        return self.asked is None or set(self.asked) >= layouts.keys()

    def __str__(self) -> str:
        if self.difference is None:
            return f"agrees with {self.by} in the tests"
        taken = ", ".join(f"{name}={str(value).lower()}" for name, value in self.taken.items())
        return f"agrees with {self.by} as a small model ({self.difference:.1e})" + (f", by {taken}" if taken else "")


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Layouts that are set, by name, and the other assignments, which are to the specification."""
    settings, changes = {}, []
    for assignment in overrides:
        name, equals, text = assignment.partition("=")
        if equals and name.strip() in LAYOUTS:
            settings[name.strip()] = yaml_value(text, name)
        else:
            changes.append(assignment)
    return settings, changes


def find_proof(values: Mapping[str, Any], settings: Mapping[str, Any]) -> Proof | None:
    """Return what is known of the reading of a config.json; None where nothing is.

    Args:
        values: of config.json.
        settings: layouts that the user has set, of which the tests prove none.
    """
    if not settings and (known := _version_of_tests(values)) is not None:
        return Proof(f"transformers {known}")
    name = _name(values, settings)
    if name not in _kept() and (file := _file(name)).is_file():
        try:
            _kept()[name] = Proof(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None  # damaged, and made anew
    return _kept().get(name)


def keep_proof(values: Mapping[str, Any], settings: Mapping[str, Any], proof: Proof) -> None:
    """Keep what a comparison found, by the keys of the small model, the settings and the versions."""
    name = _name(values, settings)
    _kept()[name] = proof
    with suppress(ArchetypeError, OSError):  # where it cannot be kept, it is compared again next time
        atomic.make_folder(_file(name).parent)
        atomic.write_json(_file(name), asdict(proof))


def with_proof(family: Family, proof: Proof | None) -> Family:
    """The family whose report says what has proved it, where that has compared each layout that was assumed."""
    reading = family.reading
    if reading is None or proof is None or proof.fault or not proof.covers(reading.alternatives):
        return family
    return replace(family, reading=replace(reading, proof=str(proof)))


def transformers_version() -> str | None:
    """The version of transformers that is installed; None without one."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


@cache
def proved_types() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The types whose small models agree in the tests, by version of transformers and task."""
    proved: dict[str, dict[str, list[str]]] = json.loads(FILE.read_bytes())
    return proved


def _version_of_tests(values: Mapping[str, Any]) -> str | None:
    """The version of transformers with which the tests have proved the type of a config.json.

    The text part of a model that also sees or hears is the text type's own model in transformers.
    """
    outer, text, classes = str(values.get("model_type")), values.get("text_config"), values.get("architectures")
    types = {outer}
    if outer in ELSEWHERE:
        return ELSEWHERE[outer]
    if outer in class_keys():
        if not is_class_of(values):
            return None
        types |= {str(text.get("model_type"))} if isinstance(text, dict) else set()
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    tasks = next((tasks for ending, tasks in TASKS if name.endswith(ending)), ())
    for known, by_task in proved_types().items():
        if any(types & {*by_task.get(task, ())} for task in tasks):
            return known
    return None


@cache
def _kept() -> dict[str, Proof]:
    return {}


def _name(values: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    ignored = BOOKKEEPING - {"model_type", "architectures"}
    small = {key: value for key, value in make_small(dict(values)).items() if key not in ignored}
    facts = (small, dict(settings), transformers_version(), _reader())
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


@cache
def _reader() -> str:
    """A hash of the source of the reader, so that no proof outlives the code that it is about."""
    package = Path(__file__).parents[2]
    files = sorted([*Path(__file__).parent.glob("*.py"), *package.glob("parts/*/infer.py")])
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _file(name: str) -> Path:
    return cache_folder() / "proofs" / f"{name}.json"
