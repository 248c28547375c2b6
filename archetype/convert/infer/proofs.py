"""Record of inferred families that the tests, or a comparison of a small model with transformers, have verified.

`proved.json` lists the model types that the tests verify, for each version of transformers (written by `make zoo`).
Results of comparing small models (`archetype/convert/proof.py`) are cached on disk.
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

from archetype.convert.infer.small import make_small
from archetype.convert.infer.spellings import LAYOUTS
from archetype.errors import ArchetypeError
from archetype.families.class_keys import class_keys, is_class_of
from archetype.families.classes import TEXTS, TOKENS
from archetype.families.config import BOOKKEEPING
from archetype.families.family import Family
from archetype.io import atomic
from archetype.io.cache import cache_folder
from archetype.io.yaml import yaml_value

FILE = Path(__file__).with_name("proved.json")
# Types verified by other tests: Kimi K2 and the text part of Kimi K2.5 use DeepSeek-V3's class, MiMo-V2.5 has the
# equations of MiMo-V2-Flash's, Step 3.5 is the text half of Step 3.7, and no key makes Muse Glimmer's small enough for
# the tests of all classes. Types that transformers has no class for are compared with their equations, written out.
EQUATIONS = "its equations"
ELSEWHERE = {
    **dict.fromkeys(("kimi_k2", "kimi_k25"), "transformers 5.23.0"),
    **dict.fromkeys(
        ("mimo_v2", "muse_glimmer", "naive_n05_flash", "solar_open2", "step3p5", "step3p7"), "transformers 5.24.0"
    ),
    **dict.fromkeys(("kimi_k3", "nanbeige", "ouro"), EQUATIONS),
}
# tasks by the ending of a class's name
TASKS = ((TEXTS, ("texts",)), (TOKENS, ("tokens",)), ("", ("causal", "pairs", "image_text")))


@dataclass(frozen=True)
class Proof:
    """Result of comparing an inferred family with a reference.

    Attributes:
        by: library and version of the reference.
        taken: layouts that agree where the assumed layouts do not, by name.
        difference: largest difference of logits relative to their largest magnitude; None if the tests are the proof.
        fault: first module that differs, with its difference; empty if the outputs agree.
        asked: layouts that matter for the small model; None for all layouts.
    """

    by: str
    taken: Mapping[str, Any] = field(default_factory=dict)
    difference: float | None = None
    fault: str = ""
    asked: tuple[str, ...] | None = None

    def covers(self, layouts: Mapping[str, Any]) -> bool:
        """Return whether the compared outputs depended on each of these layouts."""
        return self.asked is None or set(self.asked) >= layouts.keys()

    def __str__(self) -> str:
        if self.difference is None:
            return f"agrees with {self.by} in the tests"
        taken = ", ".join(f"{name}={str(value).lower()}" for name, value in self.taken.items())
        return f"agrees with {self.by} as a small model ({self.difference:.1e})" + (f", by {taken}" if taken else "")


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate overrides into layouts, keyed by name, and assignments to the specification."""
    settings, changes = {}, []
    for assignment in overrides:
        name, equals, text = assignment.partition("=")
        if equals and name.strip() in LAYOUTS:
            settings[name.strip()] = yaml_value(text, name)
        else:
            changes.append(assignment)
    return settings, changes


def find_proof(values: Mapping[str, Any], settings: Mapping[str, Any]) -> Proof | None:
    """Return the known proof for a config.json; None if there is no proof.

    Args:
        settings: layouts set by the user, which the tests do not verify.
    """
    if not settings and (known := _reference_of_tests(values)) is not None:
        return Proof(known)
    name = _name(values, settings)
    if name not in _kept() and (file := _file(name)).is_file():
        try:
            _kept()[name] = Proof(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None  # damaged; the comparison runs again
    return _kept().get(name)


def keep_proof(values: Mapping[str, Any], settings: Mapping[str, Any], proof: Proof) -> None:
    """Cache the result of a comparison, keyed by a hash of the small model's keys, the settings and the versions."""
    name = _name(values, settings)
    _kept()[name] = proof
    with suppress(ArchetypeError, OSError):  # if it cannot be written, the comparison runs again next time
        atomic.make_folder(_file(name).parent)
        atomic.write_json(_file(name), asdict(proof))


def with_proof(family: Family, proof: Proof | None) -> Family:
    """Add a proof to the family's report if it covers every assumed layout."""
    reading = family.reading
    if reading is None or proof is None or proof.fault or not proof.covers(reading.alternatives):
        return family
    return replace(family, reading=replace(reading, proof=str(proof)))


def transformers_version() -> str | None:
    """Return the installed version of transformers; None if it is not installed."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


@cache
def proved_types() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the model types verified by the tests, for each version of transformers and task."""
    return json.loads(FILE.read_bytes())


def _reference_of_tests(values: Mapping[str, Any]) -> str | None:
    # with what the tests compared the type, or the type of its text part
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
            return f"transformers {known}"
    return None


@cache
def _kept() -> dict[str, Proof]:
    return {}


def _name(values: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    ignored = BOOKKEEPING - {"model_type", "architectures"}
    # models of different sizes shrink to the same keys and share a proof
    small = {key: value for key, value in make_small(dict(values)).items() if key not in ignored}
    facts = (small, dict(settings), transformers_version(), _reader())
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


@cache
def _reader() -> str:
    # hash of the reader's source, so that a cached proof is not used for changed code
    package = Path(__file__).parents[2]
    files = sorted([*Path(__file__).parent.glob("*.py"), *package.glob("parts/*/infer.py")])
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _file(name: str) -> Path:
    return cache_folder() / "proofs" / f"{name}.json"
