"""No option takes a number that means nothing: such a number is refused in one line before anything starts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.options import call, verbs

EXTREMES = {int: ("1" + "0" * 30,), float: ("nan", "-inf", "1e300")}
NEEDED = {  # further words, for numbers that are refused once the verb has what they belong to
    "train": "text.txt --to out", "tokenizer train": "--text text.txt --kind byte_bpe",
    "evaluate --num-beams": "--data x", "evaluate --length-penalty": "--data x",
}  # fmt: skip
ANY_SIGN = {  # of numbers that may be negative, or whose bounds a model or a file has: why
    "tokenizer decode ID": "bounded by the vocabulary",
    "inspect --head": "bounded by the model",
    "inspect --position": "counted from the end where it is negative",
    "evaluate --stride": "bounded by the model's context",
    "evaluate --length": "bounded by the model's context",
    "export --seed": "refused where a model has weights, and by torch",
    "compare claim N": "one of those in the folder",
}


def numbers() -> Iterator[tuple[str, str, Any, type]]:
    """(verb, what is written, parameter, type) of every option and argument that is a number."""
    for verb, command in verbs():
        for parameter in command.params:
            kind = parameter.type_descriptor.annotation
            kind = next(iter(get_args(kind)), None) if getattr(kind, "__origin__", None) is list else kind
            if kind in (int, float):
                is_option = parameter.param_type_name == "option"
                yield verb, parameter.opts[0] if is_option else parameter.metavar.strip("[]."), parameter, kind


def below(parameter: Any) -> str:
    """A number below the least."""
    return "-1" if parameter.min is None else str(parameter.min - 1)


def refusal(verb: str, parameter: Any, value: str, folder: Path) -> str:
    """What the verb says of the value, with some word for everything that it needs."""
    words = [*verb.split(), *NEEDED.get(verb, "").split(), *NEEDED.get(f"{verb} {parameter.opts[0]}", "").split()]
    for other in dict(verbs())[verb].params:
        if other.required and other.name != parameter.name and other.opts[0] not in words:
            choices = [str(one) for one in get_args(other.type_descriptor.annotation) if isinstance(one, str)]
            value_of = [*choices, "1"][0]
            words += [other.opts[0], "x"] if other.param_type_name == "option" else [value_of] * max(1, other.nargs)
    words += [f"{parameter.opts[0]}={value}"] if parameter.param_type_name == "option" else ["--", value]
    done = call(words, folder)
    assert (done.status, done.output) == (2, "") and done.error.count("\n") == 1, (words, done)
    assert [file.name for file in folder.iterdir()] == ["text.txt"]
    return done.error


@pytest.mark.parametrize("verb", every(8, sorted({verb for verb, *_ in numbers()})))
def test_a_number_beyond_all_bounds_is_refused(verb: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text to learn from\n" * 40)
    for owner, written, parameter, kind in numbers():
        if owner != verb:
            continue
        too_small = () if f"{verb} {written}" in ANY_SIGN else (below(parameter),)
        for value in (*EXTREMES[kind], *too_small):
            with case(verb, written, value):
                said = refusal(verb, parameter, value, tmp_path)
                name = written.strip("-").replace("-", "_")
                assert written in said or name in said, said
                causes = ("is not a finite number", *["is too "] * (value != "nan"))
                assert any(cause in said for cause in causes), said


def test_every_exception_is_a_parameter() -> None:
    there = {f"{verb} {written}" for verb, written, *_ in numbers()}
    assert there >= ANY_SIGN.keys() and len(there) > 60
