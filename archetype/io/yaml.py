"""YAML and JSON text to plain data and back; every mistake is located by line and column."""

import io
import json
from pathlib import Path
from typing import Any

from archetype.errors import SpecError

MAX_FILE_BYTES = 4 * 2**20


def read_mapping(file: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, by its ending."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise SpecError(str(file), f"is larger than {MAX_FILE_BYTES // 2**20} MiB", "is it the right file?")
        text = file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise SpecError(str(file), f"is not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    except OSError as error:
        raise SpecError(str(file), f"cannot be read: {error.strerror}", "check the path") from None
    data = json_value(text, str(file)) if file.suffix == ".json" else yaml_value(text, str(file))
    if not isinstance(data, dict):
        raise SpecError(str(file), "does not hold a mapping", "write key: value lines")
    return data


def yaml_value(text: str, place: str) -> Any:
    """Any YAML 1.2 value; `place` names its origin in errors."""
    from ruamel.yaml import YAML  # here, because a preset needs none of it
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
        cause = str(error.problem or "").partition("\n")[0]
        raise SpecError(where, f"is not YAML: {cause}", "fix that line") from None
    except (YAMLError, ValueError, RecursionError) as error:
        cause = str(error).partition("\n")[0]
        raise SpecError(place, f"is not YAML: {cause}", "check the file") from None


def json_value(text: str, place: str) -> Any:
    """Any JSON value; `place` names its origin in errors."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{place}:{error.lineno}:{error.colno}"
        raise SpecError(where, f"is not JSON: {error.msg}", "fix that line") from None
    except (RecursionError, ValueError) as error:
        raise SpecError(place, f"is not JSON: {error}", "check the file") from None


def mapping_to_yaml(data: dict[str, Any]) -> str:
    """Plain data as YAML: innermost mappings on one line each."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 120
    buffer = io.StringIO()
    yaml.dump(data, buffer)
    return buffer.getvalue()
