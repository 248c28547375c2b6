"""Named parts learn and the others stay as they are; what is resumed is what was interrupted, to the bit."""

import random
import re
import time
from pathlib import Path

import pytest
import torch

from archetype.errors import SpecError
from archetype.nn.parameter_names import NamePattern
from archetype.training.optimizers import optimizer_tensors
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")
MATCHES = {
    "blocks.[8-11].*": ({"blocks.8.mixer.q.weight", "blocks.11.mixer_norm.weight"}, {"blocks.1.mixer.q.weight"}),
    "blocks.1": ({"blocks.1.mixer.q.weight"}, {"blocks.11.mixer_norm.weight", "blocks.8.mixer.q.weight"}),
    "*.mixer.{q,v}": ({"blocks.8.mixer.q.weight"}, {"blocks.8.mixer.k.weight", "blocks.11.mixer_norm.weight"}),
    "lm_head": ({"lm_head.weight"}, {"lm_headx.weight"}),
}


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_matches_names_and_modules(pattern: str) -> None:
    matching, others = MATCHES[pattern]
    meant = NamePattern(pattern)
    assert all(meant.matches(name) for name in matching)
    assert not any(meant.matches(name) for name in others)


def as_expression(pattern: str) -> str:
    """The same pattern as a regular expression, every number written out."""
    parts = re.split(r"(\[\d+-\d+\]|\{[^{}]*\}|\*)", pattern)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = re.escape(part)
        elif part == "*":
            parts[place] = ".*"
        else:
            first, _, last = part[1:-1].partition("-")
            words = part[1:-1].split(",") if part[0] == "{" else map(str, range(int(first), int(last) + 1))
            parts[place] = f"({'|'.join(map(re.escape, words))})"
    return rf"{''.join(parts)}(\..*)?"


def test_patterns_match_what_expressions_do_and_take_no_time() -> None:
    draw, answers = random.Random(0), [0, 0]
    pieces = ["blocks", ".", "*", "[0-3]", "[2-11]", "{q,v}", "{,k}", "mixer", "1", "1", "norm", "x"]
    for _ in range(3000):
        pattern = "".join(draw.choices(pieces, k=draw.randint(1, 6)))
        names = [
            "".join(draw.choices(["blocks", ".", "0", "1", "11", "q", "v", "k", "mixer", "norm"], k=4)) for _ in "123"
        ]
        for name in (*names, "blocks.1.mixer.q", re.sub(r"[\[\]{},*-]", "", pattern)):
            expected = re.fullmatch(as_expression(pattern), name) is not None
            assert NamePattern(pattern).matches(name) == expected, (pattern, name)
            answers[expected] += 1
    assert min(answers) > 500
    begin = time.monotonic()
    for pattern in ("blocks.[0-99999999999].mixer", f"blocks.[0-{'9' * 5000}].mixer", "*a*b" * 200, "[0-9]*" * 200):
        assert NamePattern(pattern).matches("blocks.7.mixer.q.weight") == pattern.startswith("blocks")
        NamePattern(pattern).matches("ab" * 100)
    assert time.monotonic() - begin < 5


def test_named_parts_learn_and_resume_to_the_bit(tmp_path: Path, recipe: Recipe) -> None:
    some = recipe.replace(trainable=("blocks.[1-7].mixer", "*.feedforward_norm"))
    whole = start(tmp_path / "whole", some, CPU)
    before = {name: tensor.clone() for name, tensor in whole.model.state_dict().items()}
    expected = [measured(step) for step in steps(whole)]
    changed = {name for name, tensor in whole.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.rpartition(".")[0] for name in changed} == {
        "blocks.0.feedforward_norm", "blocks.1.feedforward_norm", *(f"blocks.1.mixer.{part}" for part in "qkvo"),
    }  # fmt: skip
    assert {name.partition(":")[0] for name in optimizer_tensors(whole.model, whole.optimizer)} == changed
    assert all(parameter.grad is None for parameter in whole.model.parameters())
    first = steps(start(tmp_path / "parts", some, CPU), 8)
    second = resume(tmp_path / "parts", CPU)
    assert [measured(step) for step in first + steps(second)] == expected
    assert_equal_states(second, whole)


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(SpecError, match=r"trainable: 'blocks.7.mixer.q' matches no parameter; the nearest are blocks"):
        start(tmp_path / "run", recipe.replace(trainable=("blocks.7.mixer.q",)), CPU)
    assert not (tmp_path / "run").exists()
