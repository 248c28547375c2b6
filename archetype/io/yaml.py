"""YAML and JSON text to plain data and back; every mistake is located by line and column."""

import io
from pathlib import Path
from typing import Any

from archetype.errors import SpecError
from archetype.io.files import MAX_CONFIG_BYTES, json_value, read_bytes

REMEDY = "fix that line"


def read_mapping(file: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, by its ending."""
    data = read_bytes(file, MAX_CONFIG_BYTES, SpecError)
    if file.suffix == ".json":
        value = json_value(data, str(file), SpecError, REMEDY)
    else:
        try:
            value = yaml_value(data.decode(), str(file))
        except UnicodeDecodeError as error:
            raise SpecError(str(file), f"is not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    if not isinstance(value, dict):
        raise SpecError(str(file), "does not hold a mapping", "write key: value lines")
    return value


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
        raise SpecError(where, f"is not YAML: {cause}", REMEDY) from None
    except (YAMLError, ValueError, RecursionError) as error:
        cause = str(error).partition("\n")[0]
        raise SpecError(place, f"is not YAML: {cause}", "check the file") from None


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
