"""Which keys of a config.json the classes of transformers read: writes `archetype/families/class_keys.json`.

    python -m tests.helpers.class_keys

Found in their source: attributes of whatever is called a config, names that are looked up in it by a string, and what
the functions that they share read of it.
"""

import ast
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name

from archetype.families.class_keys import DERIVED, FILE, Release, release_of, tables
from archetype.families.config import BOOKKEEPING
from archetype.families.registry import published
from tests.helpers.zoo import TYPES

ROOT = Path(transformers.__file__).parent
# Modules of functions that classes share, and hand their whole configuration to.
SHARED = ("masking_utils", "modeling_rope_utils", "modeling_layers", "modeling_attn_mask_utils")
# What the base of all classes does with a configuration, of which their sources say nothing.
ALWAYS = {"tie_word_embeddings", "per_layer_config", "vocab_size", "quantization_config", "compression_config"}
FRACTION = "partial_rotary_factor"  # which each class reads for itself or does not
TRAINED = "original_max_position_embeddings"  # which the base of all classes puts into the section, where it is flat
BESIDE = {"rope_theta", "rope_scaling", FRACTION}  # the section of rotary positions, in older files


@dataclass
class Reading:
    """What a piece of source looks up in configurations.

    Attributes:
        attributes: names looked up as attributes.
        strings: names looked up by a string, and what stands for them where there is none.
        assigned: attributes that a configuration gives itself.
        names: functions and classes that are mentioned.
    """

    attributes: set[str] = field(default_factory=set)
    strings: dict[str, Any] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add(self, other: "Reading") -> None:
        """What another piece looks up, too."""
        self.attributes |= other.attributes
        self.assigned |= other.assigned
        self.look_up(other.strings)

    def look_up(self, strings: Mapping[str, Any]) -> None:
        """Names that are looked up by strings; a value that stands for one that is absent is kept."""
        for name, value in strings.items():
            self.strings[name] = self.strings.get(name) if value is None else value


def is_config(node: ast.AST, of_itself: bool) -> bool:
    """Whether an expression is a configuration, by its name; `of_itself` in the source of one, where it is `self`."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "config" in name.lower() or (of_itself and name in ("self", "kwargs"))


def read_source(tree: ast.AST, of_itself: bool = False) -> Reading:
    """What is looked up below a node."""
    reading = Reading()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if is_config(value, of_itself):
                (reading.attributes if isinstance(node.ctx, ast.Load) else reading.assigned).add(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[value, ast.Constant(value=name), *rest]) if (
                is_config(value, of_itself)
            ):
                reading.look_up({name: constant(rest)})
            case ast.Call(func=ast.Attribute(value=value), args=[ast.Constant(value=str(name)), *rest]) if is_config(
                value, of_itself
            ):
                reading.look_up({name: constant(rest)})  # kwargs.pop, config.get
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[value]) if is_config(value, of_itself):
                reading.look_up({name: None})
            case ast.Assign(targets=[ast.Name(id="attribute_map")], value=ast.Dict(keys=keys, values=values)):
                reading.look_up({one.value: None for one in (*keys, *values) if isinstance(one, ast.Constant)})
            case ast.Assign(
                targets=[ast.Subscript(value=value, slice=ast.Constant(value=str(name)))], value=ast.Constant() as fixed
            ) if is_config(value, of_itself):
                reading.look_up({name: fixed.value})  # kwargs[...] = ...
            case ast.Constant(value="partial_rotary_factor"):
                reading.look_up({FRACTION: None})
        if isinstance(node, ast.Name):
            reading.names.add(node.id)
    return reading


def constant(arguments: list[ast.expr]) -> Any:
    """The value of the first of these arguments, where it is written there."""
    return arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else None


@cache
def shared() -> dict[str, Reading]:
    """The functions and classes that others share, by name, each with all that it calls."""
    pieces = {
        node.name: read_source(node)
        for module in SHARED
        if (file := ROOT / f"{module}.py").is_file()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    pieces["ROPE_INIT_FUNCTIONS"] = Reading(names={name for name in pieces if name.startswith("_compute_")})
    for name in pieces:
        reached, waiting = set(), [name]
        while waiting:
            if (one := waiting.pop()) not in reached:
                reached.add(one)
                waiting += pieces[one].names & pieces.keys()
        for one in reached:
            pieces[name].add(pieces[one])
        pieces[name].strings.pop(FRACTION, None)  # of the section, which the class reads for itself or does not
    return pieces


@cache
def module_reading(file: Path, of_itself: bool) -> Reading:
    """What a module looks up, with what it imports from other models and of `SHARED`."""
    tree = ast.parse(file.read_text())
    reading = read_source(tree, of_itself)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level:
            *_, package = node.module.split(".")
            if package in SHARED:
                for alias in node.names:
                    reading.add(shared().get(alias.name, Reading()))
            other = file.parents[node.level - 1] / (node.module.replace(".", "/") + ".py")
            if node.level == 2 and re.match("modeling|configuration", package) and other.is_file():
                reading.add(module_reading(other, package.startswith("configuration")))
    return reading


def types() -> list[str]:
    """The model types of which something is to be known: those that are read, and the parts of them that read text."""
    outer = {*TYPES, *published()} & set(CONFIG_MAPPING.keys())
    sections = (CONFIG_MAPPING[kind].sub_configs_defaults.get("text_config") for kind in outer)
    inner = {section.model_type for section in sections if section is not None}
    return sorted(outer | (inner & set(CONFIG_MAPPING.keys())))


def row(kind: str, every: set[str]) -> list[Any]:
    """The classes of a type, and the keys that they read with their defaults.

    Args:
        kind: the type.
        every: keys of any class.
    """
    config_class = CONFIG_MAPPING[kind]
    reading = Reading()
    names = classes(kind)
    for file in modeling_files(kind, names[1:]):
        reading.add(module_reading(file, of_itself=False))
    rotates = FRACTION in reading.strings  # in its code: the configuration may say it of a scaling alone (Gemma 4)
    for one in config_class.__mro__:
        if one.__module__.startswith("transformers.models."):
            reading.add(module_reading(Path(inspect.getfile(one)), of_itself=True))
    keys_found = (reading.attributes & (every | reading.assigned)) | reading.strings.keys() | ALWAYS
    defaults = reading.strings | {one.name: one.default for one in fields(config_class)}
    derived = dict.fromkeys(reading.assigned, DERIVED)
    if "rope_parameters" in keys_found:
        if "self.rope_parameters =" not in inspect.getsource(config_class.__post_init__):
            derived.pop("rope_parameters", None)  # the class has no scaling where a file says nothing
        theta = config_class.default_theta
        defaults["rope_theta"] = defaults.get("rope_theta") or (DERIVED if isinstance(theta, dict) else theta)
        sections = {f"rope_parameters.{FRACTION}"} if rotates else set()
        keys_found = keys_found - BESIDE | (BESIDE & read_beside(config_class, keys_found)) | sections | {TRAINED}
    words = {key for key in keys_found - BOOKKEEPING if key.replace(".", "").isidentifier() and key[0] != "_"}
    stated = {key: value for key, value in defaults.items() if plain(value) is not None}
    return [names, {key: plain((derived | stated).get(key)) for key in sorted(words)}]


def read_beside(config_class: Any, keys_found: set[str]) -> set[str]:
    """Keys of rotary positions that a class reads beside their section too, unless it has a way of its own."""
    reading = config_class.convert_rope_params_to_dict
    source = inspect.getsource(reading)
    if reading is PreTrainedConfig.convert_rope_params_to_dict or "super()" in source:
        return {"rope_theta", "rope_scaling", *({FRACTION} & keys_found)}
    return {key for key in BESIDE if key in source}


def modeling_files(kind: str, borrowed: list[str]) -> list[Path]:
    """The sources of the classes of a type, and of classes that it borrows from others."""
    files = list((ROOT / "models" / model_type_to_module_name(kind)).glob("modeling_*.py"))
    return files + [Path(inspect.getfile(getattr(transformers, name))) for name in borrowed]


def plain(value: Any) -> Any:
    """A default that a file can be compared with."""
    return value if isinstance(value, bool | int | float | str) else None


def classes(kind: str) -> list[str]:
    """What the names of the classes of a type start with, and whole names of other types' classes that it borrows."""
    start = CONFIG_MAPPING[kind].__name__.removesuffix("Config").removesuffix("Text")
    mappings = (mapping for label, mapping in vars(modeling_auto).items() if label.endswith("_MAPPING_NAMES"))
    names = {name for mapping in mappings if isinstance(name := mapping.get(kind), str)}
    return [start, *sorted(name for name in names if not name.startswith(start))]


def universe(kinds: list[str]) -> set[str]:
    """The keys that any class declares."""
    return {one.name for kind in kinds for one in fields(CONFIG_MAPPING[kind])}


def rows() -> dict[str, list[Any]]:
    """All rows."""
    kinds = types()
    every = universe(kinds)
    return {kind: row(kind, every) for kind in kinds}


def written(release: Release, of_release: dict[str, list[Any]]) -> str:
    """The file with the rows of a release beside those of others: the newest whole, of the others what differs."""
    known = tables(json.loads(FILE.read_bytes())) | {release: of_release}
    newest = known[max(known)]
    others = []
    for (major, minor), one in sorted(known.items()):
        differs = {kind: one.get(kind) for kind in sorted(one.keys() | newest) if one.get(kind) != newest.get(kind)}
        if one is not newest:
            others.append(f'"{major}.{minor}": {json.dumps(differs)}')
    lines = (f"  {json.dumps(kind)}: {json.dumps(one)}" for kind, one in sorted(newest.items()))
    version, older = ".".join(map(str, max(known))), ",\n  ".join(others)
    return f'{{"version": "{version}", "older": {{\n  {older}}}, "types": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    FILE.write_text(written(release_of(transformers.__version__), rows()))
