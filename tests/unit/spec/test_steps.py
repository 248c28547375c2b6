"""The assignments between two specifications turn one into the other, and say no more than what differs."""

from itertools import permutations

import pytest

from archetype.errors import SpecError
from archetype.families.registry import preset
from archetype.spec.base import fingerprint
from archetype.spec.edit import assign
from archetype.spec.steps import assignments
from tests.helpers.cases import case
from tests.helpers.examples import every

NAMES = ("llama-tiny", "gemma3-tiny", "deepseek-v3-tiny", "gpt-oss-tiny", "smollm3-tiny", "gpt2-tiny")


@pytest.mark.parametrize("pair", every(7, [*permutations(NAMES, 2)]))
def test_the_assignments_make_the_other_specification(pair: tuple[str, str]) -> None:
    first, second = map(preset, pair)
    lines = assignments(first, second)
    assert fingerprint(assign(first, lines)) == fingerprint(second)
    for line in lines:  # each of them is needed
        with case(*pair, line):
            try:
                without = fingerprint(assign(first, [other for other in lines if other != line]))
            except SpecError:
                continue
            assert without != fingerprint(second)


def test_only_what_differs_is_said() -> None:
    changes = ["d_model=128", "layers[1].mixer=mamba"]
    assert assignments(preset("llama-tiny"), assign(preset("llama-tiny"), changes)) == [
        "d_model=128",
        "layers[1].mixer={kind: mamba}",
    ]
    assert assignments(preset("llama-tiny"), preset("llama-tiny").replace(name="mine")) == []


def test_a_pattern_is_one_assignment_and_its_exceptions() -> None:
    spec = assign(preset("llama-tiny"), ["num_layers=8"])
    changes = ["layers[*].feedforward.d_ff=96", "layers[3::4].feedforward.d_ff=32"]
    assert assignments(spec, assign(spec, changes)) == changes


def test_a_stack_without_a_pattern_is_written_whole() -> None:
    spec = assign(preset("llama-tiny"), ["num_layers=3", "layers[2].mixer=mamba"])
    longer = assign(preset("llama-tiny"), ["num_layers=5", "layers[1,4].mixer=mamba"])
    (line,) = assignments(spec, longer)
    assert line.startswith("layers=[")
    assert fingerprint(assign(spec, [line])) == fingerprint(longer)


def test_models_of_different_kinds_are_refused() -> None:
    with pytest.raises(SpecError, match="kind: decoder cannot be changed into encoder; start from"):
        assignments(preset("llama-tiny"), preset("bert-tiny"))
