"""Conversion between YAML or JSON text and plain data. Errors name line and column."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from archetype.distribution import schema_url
from archetype.errors import SpecError
from archetype.io.files import MAX_CONFIG_BYTES, MAX_DIGITS, json_value, read_bytes

REMEDY = "fix that line"
MAX_ITEMS, MAX_DEPTH = 200_000, 100  # of a YAML file
MERGE = "<<"
UNSET: Any = object()
# Unquoted words and numbers of the core schema (YAML 1.2.2, section 10.3.2); underscores may group digits.
WORDS: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
LINE_BREAKS = set("\r\x85\u2028\u2029")  # need escapes in double quotes; elsewhere they read back as other white space
HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")


def read_mapping(file: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file, or from a JSON file if the suffix is .json."""
    data = read_bytes(file, MAX_CONFIG_BYTES, SpecError)
    if file.suffix == ".json":
        value = json_value(data, str(file), SpecError, REMEDY)
    else:
        try:
            value = yaml_value(data.decode(), str(file))
        except UnicodeDecodeError as error:
            raise SpecError(str(file), f"is not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    if not isinstance(value, dict):
        raise SpecError(str(file), "is not a mapping", "write key: value lines")
    return value


def yaml_value(text: str, place: str) -> Any:
    """Parse a value with the core schema of YAML 1.2. `place` names the source in errors."""
    import yaml  # imported here, since presets do not need it

    try:
        return _Builder().value_of(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
        raise SpecError(where, f"is not YAML: {error.problem or error.context}", REMEDY) from None
    except (yaml.YAMLError, ValueError) as error:
        cause = str(error).partition("\n")[0]
        raise SpecError(place, f"is not YAML: {cause}", "check the file") from None


class _Builder:
    """Builder of plain data from YAML events in one pass, without recursion."""

    def __init__(self) -> None:
        self.open: list[_Collection] = []  # unfinished collections, the innermost last
        self.anchors: dict[str, tuple[Any, int]] = {}  # anchor -> (value, number of items)

    def value_of(self, events: Iterable[Any]) -> Any:
        """Return the value of the only document; None if there is no document."""
        root = self._begin(_Collection([], None))
        for event in events:
            match type(event).__name__:
                case "ScalarEvent":
                    self._add(event, _scalar(event), event.anchor)
                case "SequenceStartEvent" | "MappingStartEvent":
                    _check_tag(event)
                    values: Any = [] if type(event).__name__ == "SequenceStartEvent" else {}
                    self._begin(_Collection(values, event))
                case "SequenceEndEvent" | "MappingEndEvent":
                    collection = self.open.pop()
                    # merged when the mapping ends, since << may follow other keys
                    values = _merged(collection) if MERGE in collection.values else collection.values
                    self._add(collection.event, values, collection.event.anchor, collection.size)
                case "AliasEvent":
                    if event.anchor not in self.anchors:
                        raise _error(event, f"found undefined alias {event.anchor!r}")
                    # an alias counts all its items: nested aliases grow exponentially ("billion laughs")
                    self._add(event, *self.anchors[event.anchor][:1], None, self.anchors[event.anchor][1])
        if len(root.values) > 1:
            raise ValueError("it has several documents")
        return root.values[0] if root.values else None

    def _begin(self, collection: "_Collection") -> "_Collection":
        if len(self.open) > MAX_DEPTH:
            raise _error(collection.event, f"it is nested deeper than {MAX_DEPTH} levels")
        self.open.append(collection)
        return collection

    def _add(self, event: Any, value: Any, anchor: str | None, size: int = 1) -> None:
        parent = self.open[-1]
        parent.size += size
        if parent.size > MAX_ITEMS:
            raise _error(event, f"it has more than {MAX_ITEMS:,} items")
        if anchor is not None:
            self.anchors[anchor] = value, size
        if isinstance(parent.values, list):
            parent.values.append(value)
        elif parent.key is not UNSET:
            parent.values[parent.key], parent.key = value, UNSET
        elif isinstance(value, list | dict):
            raise _error(event, "found unhashable key")
        elif value in parent.values:
            raise _error(event, f"found duplicate key {value!r}")
        else:
            parent.key = value


@dataclass
class _Collection:
    """List or mapping whose entries are being read."""

    values: Any
    event: Any
    key: Any = UNSET  # of a mapping: the key whose value is next
    size: int = 1  # number of items; an alias counts its items at each use


def _merged(collection: _Collection) -> Any:
    # the merge key << of YAML 1.1: keys of the mapping have precedence
    if isinstance(collection.values, list):
        return collection.values
    sources = collection.values.pop(MERGE)
    for source in sources if isinstance(sources, list) else [sources]:
        if not isinstance(source, dict):
            raise _error(collection.event, f"{MERGE} must be a mapping")
        collection.values = source | collection.values
    return collection.values


def _scalar(event: Any) -> Any:
    _check_tag(event)
    text: str = event.value
    if not event.implicit[0]:  # in quotes
        return text
    if text in WORDS:
        return WORDS[text]
    is_number, is_hexadecimal = NUMBER.fullmatch(text), HEXADECIMAL.fullmatch(text)
    if (is_number or is_hexadecimal) and len(text) > MAX_DIGITS:
        raise _error(event, f"it has a number of more than {MAX_DIGITS:,} digits")
    if is_number:
        return int(text) if text.lstrip("+-").replace("_", "").isdigit() else float(text)
    return int(text, 0) if is_hexadecimal else text


def _check_tag(event: Any) -> None:
    if event.tag is not None and event.tag != "!":
        raise _error(event, f"unknown tag {event.tag!r}")


def _error(event: Any, problem: str) -> Exception:
    from yaml import MarkedYAMLError

    return MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def with_schema_line(text: str, kind: str) -> str:
    """Prepend the comment through which editors find the JSON Schema of a kind of document, if it has a URL."""
    address = schema_url(kind)
    return f"# yaml-language-server: $schema={address}\n{text}" if address else text


def mapping_to_yaml(data: Any, anchors: Mapping[str, Any] | None = None) -> str:
    """Format plain data as YAML, with each innermost mapping on one line.

    Args:
        anchors: parts of the data that are written once, under these names, and referred to where they occur again.
    """
    return _dumped(data, flow_style=None, width=120, anchors=anchors or {})


def flow(value: Any) -> str:
    # PyYAML ends a bare scalar with the document marker "..."
    return _dumped(value, flow_style=True, width=10**6).removesuffix("...\n").rstrip("\n")


def _dumped(data: Any, flow_style: bool | None, width: int, anchors: Mapping[str, Any] | None = None) -> str:
    import yaml

    names = {id(part): name for name, part in (anchors or {}).items()}

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """YAML dumper that quotes a string only if it would be read as another type."""

        yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}

        def ignore_aliases(self, data: Any) -> bool:
            return id(data) not in names

        def generate_anchor(self, node: Any) -> str:
            return next(names[key] for key, other in self.represented_objects.items() if other is node)

    plain, words = "tag:yaml.org,2002:float", "|".join(map(re.escape, WORDS))  # one tag for all that is not text
    Dumper.add_implicit_resolver(plain, re.compile(rf"({words}|{NUMBER.pattern}|{HEXADECIMAL.pattern})\Z"), None)
    for kind in (type(None), bool, int, float):
        Dumper.add_representer(kind, lambda dumper, value: dumper.represent_scalar(plain, _plain(value)))
    Dumper.add_representer(str, _represent_text)
    options = {"sort_keys": False, "allow_unicode": True, "default_flow_style": flow_style, "width": width}
    return str(yaml.dump(data, Dumper=Dumper, **options))


def _plain(value: float | None) -> str:
    # JSON's spelling of numbers, except for the values that JSON does not have
    text = json.dumps(value)
    return {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}.get(text, text)


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if LINE_BREAKS & set(text) else None)
