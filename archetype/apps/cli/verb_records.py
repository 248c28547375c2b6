"""The verbs as plain data: arguments and options with their types, defaults and help."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

EXIT_STATUSES = {
    "0": "done",
    "1": "a check or comparison failed, or the training diverged",
    "2": "wrong input: one line on standard error says place, cause and remedy",
    "130": "interrupted by Ctrl-C; 128 + N: by the signal N. What was trained so far can be resumed",
}
BUDGETS = ("--minutes", "--steps", "--tokens", "--flops", "--epochs", "--max-new-tokens", "--limit", "--timeout")
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "path"}
SHOWN_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


def verb_records(group: Any) -> Iterator[dict[str, Any]]:
    """Yield a record of every verb; those of a group as `tokenizer train`."""
    for name in group.commands:
        command = group.get_command(None, name)
        for inner, verb in getattr(command, "commands", {"": command}).items():
            yield verb_record(f"{name} {inner}".strip(), verb)


def verb_record(name: str, verb: Any) -> dict[str, Any]:
    """Return a verb with its arguments and options, and which of these limit how long it runs."""
    shown = [each for each in verb.params if each.param_type_name == "option" and not each.hidden]
    options = [_parameter(each) for each in shown]
    return {
        "verb": name,
        "help": " ".join((verb.help or "").split()),
        "arguments": [_parameter(each) for each in verb.params if each.param_type_name == "argument"],
        "options": options,
        "budgets": [option["name"] for option in options if option["name"] in BUDGETS],
        "json": any(option["name"] == "--json" for option in options),
    }


def _parameter(parameter: Any) -> dict[str, Any]:
    is_option = parameter.param_type_name == "option"
    help_, default = parameter.help or "", parameter.default
    if match := SHOWN_DEFAULT.search(help_):  # a default that depends on other things is said in the help
        help_, default = help_[: match.start()], match[1] if default is None else default
    annotation = parameter.type_descriptor.annotation
    return {
        "name": parameter.opts[0] if is_option else str(parameter.metavar or parameter.name).strip("[].").upper(),
        "names": parameter.opts if is_option else [],
        "type": _type(annotation),
        "choices": list(get_args(annotation)) if get_origin(annotation) is Literal else [],
        "required": parameter.required,
        "repeats": parameter.nargs == -1 or bool(getattr(parameter, "multiple", False)),
        "default": str(default) if isinstance(default, Path) else default,
        "help": help_,
    }


def _type(annotation: Any) -> str:
    if get_origin(annotation) is tuple:
        return " and ".join(map(_type, get_args(annotation)))
    if get_origin(annotation) is list:  # of which each word is one
        return _type(get_args(annotation)[0])
    return TYPES.get(annotation, "string")
