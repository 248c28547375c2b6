"""Search for the modules named in an adapter's configuration, as in PEFT. Runs in a process that can be killed.

Names may be regular expressions from an untrusted source, which can keep Python's `re` busy forever.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

TIED = ("embed_tokens", "lm_head")  # modules that PEFT keeps tied on request
LONGEST = 60  # characters of an expression quoted in errors
# the pattern that PEFT builds from an expression, by key
WHOLE = {
    "rank_pattern": r"(.*\.)?({})$",
    "alpha_pattern": r"(.*\.)?({})$",
    "target_modules": "{}",
    "exclude_modules": "{}",
    "modules_to_save": r"(^|.*\.){}($|\..*)",
    "layers_pattern": r"(?:^|.*?\.){}\.(?P<idx>\d+)\.",
}
ANY_LAYER = re.compile(r".*?\.[^.]*\.(?P<idx>\d+)\.")


def answer(values: Mapping[str, Any], modules: list[str]) -> dict[str, Any]:
    """Match modules against an adapter_config.json.

    Args:
        values: configuration by key, with types already checked.
        modules: names of the modules that have adapters in the tensor file.

    Returns:
        "wrong": key and text of an invalid regular expression; or "modules": rank, alpha, and whether it is adapted,
            for each module, and "ties": whether a named module is one that PEFT may keep tied.
    """
    for key, expression in _expressions(values):
        try:
            _compiled(key, expression)
        except (re.error, OverflowError, RecursionError):
            return {"wrong": [key, expression[:LONGEST]]}
    saved = {name.rpartition(".")[2] for name in values.get("modules_to_save", ())}
    return {
        "modules": [
            [
                _of_pattern(values, "rank_pattern", "r", module),
                _of_pattern(values, "alpha_pattern", "lora_alpha", module),
                _is_adapted(values, module),
            ]
            for module in modules
        ],
        "ties": any(name in saved or _is_named(values, "target_modules", name) for name in TIED),
    }


def _expressions(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key in ("rank_pattern", "alpha_pattern"):
        yield from ((key, pattern) for pattern in values.get(key, ()))
    for key in ("modules_to_save", "layers_pattern"):
        yield from ((key, pattern) for pattern in _listed(values.get(key, [])))
    for key in ("target_modules", "exclude_modules"):
        if isinstance(pattern := values.get(key), str):
            yield key, pattern


def _of_pattern(values: Mapping[str, Any], key: str, default: str, module: str) -> Any:
    # the first pattern that matches the end of the module's name decides
    patterns = values.get(key, {}).items()
    return next((value for pattern, value in patterns if _compiled(key, pattern).match(module)), values[default])


def _is_adapted(values: Mapping[str, Any], module: str) -> bool:
    saved = values.get("modules_to_save", ())
    if _is_named(values, "exclude_modules", module) or any(
        _compiled("modules_to_save", name).match(module) for name in saved
    ):
        return False
    names = values.get("target_modules")
    if names is None or (isinstance(names, str) and names.lower() == "all-linear"):
        return True  # PEFT's table of models or the module's class has decided
    if not _is_named(values, "target_modules", module):
        return False
    layers = values.get("layers_to_transform")
    if isinstance(names, str) or module in names or layers is None or layers == []:
        return True
    patterns = [_compiled("layers_pattern", expression) for expression in _listed(values.get("layers_pattern") or [])]
    match = next(filter(None, (pattern.match(module) for pattern in patterns or [ANY_LAYER])), None)
    return match is not None and int(match["idx"]) in _listed(layers)


def _is_named(values: Mapping[str, Any], key: str, module: str) -> bool:
    # a string is an expression for the whole name, a list holds ends of names
    names = values.get(key) or ()
    if isinstance(names, str):
        return _compiled(key, names).fullmatch(module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@cache
def _compiled(key: str, expression: str) -> re.Pattern[str]:
    return re.compile(WHOLE[key].format(expression))
