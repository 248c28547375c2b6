"""A field that is written in another shape: the message has the line that would be right, for every kind there is."""

import re
from collections.abc import Iterator

import pytest
import yaml
from pydantic import ValidationError

from archetype.convert.source import open_spec
from archetype.errors import SpecError
from archetype.spec import describe
from archetype.spec.base import Spec
from archetype.spec.edit import assign
from archetype.spec.errors import explain
from archetype.spec.kinds import ByKind, Part, load_all_kinds
from tests.helpers.cases import case


def roles() -> Iterator[tuple[type[Part], ByKind]]:
    load_all_kinds()
    yield from ((role, ByKind(role)) for role in Part.__subclasses__() if role.__module__.startswith("archetype.roles"))


def refusal(by_kind: ByKind, value: object) -> SpecError:
    with pytest.raises(Exception) as caught:
        by_kind.validate(value)
    error = caught.value
    if isinstance(error, ValidationError):
        return explain(error)
    return SpecError("", str(error.context["cause"]), str(error.context["remedy"]))


def test_the_line_in_the_message_is_right() -> None:
    """True, a number and a list where a part is asked, and the bare name of each kind that needs more."""
    count = 0
    for role, by_kind in roles():
        for value in (True, 3, ["rms"]):
            with case(role.__name__, value):
                remedy = refusal(by_kind, value).remedy
                line = re.fullmatch(r"write a kind, such as (.*); `archetype explain (\w+)` lists them", remedy)
                assert line is not None, remedy
                assert isinstance(by_kind.validate(yaml.safe_load(line[1])), role)
                assert describe.kinds_of(line[2]) or role.role_name() == "objective"
                count += 1
        for kind, cls in role.kinds.items():
            if missing := [name for name, field in cls.model_fields.items() if field.is_required()]:
                with case(role.__name__, kind):
                    error = refusal(by_kind, kind)
                    fields = re.fullmatch(r"(\w+) needs (.+)", error.cause)
                    assert fields is not None and fields[1] == kind
                    assert re.split(", | and ", fields[2]) == missing and fields[2].count(" and ") <= 1
                    part = by_kind.validate(yaml.safe_load(error.remedy.removeprefix("write ")))
                    assert isinstance(part, cls)
                    count += 1
            else:
                assert isinstance(by_kind.validate(kind), cls)
    assert count > 60


@pytest.mark.parametrize(
    ("preset", "assignment", "expected"),
    [
        ("llama-tiny", "layers[0].wiring=pre_norm",
         "layers[0].wiring: pre_norm needs norm; write {kind: pre_norm, norm: rms}"),
        ("llama-tiny", "layers[0].mixer.qk_norm=true",
         "layers[0].mixer.qk_norm: True is not a kind; write a kind, such as rms; `archetype explain norm` lists them"),
        ("llama-tiny", "layers[0].mixer.qk_norm=false", "layers[0].mixer.qk_norm: False is not a kind; write none"),
        ("t5-tiny", "state_bridge=state", "state_bridge: 'state' is not a mapping; write {kind: state}"),
        ("t5-tiny", "state_bridge=true", "state_bridge: True is not a mapping; write {kind: state}"),
        ("llama-tiny", "layers[0].feedforward=gated",
         "layers[0].feedforward: gated needs d_ff and activation; write {kind: gated, d_ff: 8, "
         "activation: relu}"),
    ],
)  # fmt: skip
def test_what_users_wrote_is_answered(preset: str, assignment: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        assign(open_spec(preset), [assignment])
    assert str(caught.value) == expected


def test_the_answer_is_followed() -> None:
    spec = assign(
        open_spec("llama-tiny"), ["layers[0].wiring={kind: pre_norm, norm: rms}", "layers[0].mixer.qk_norm=rms"]
    )
    assert isinstance(spec, Spec)
