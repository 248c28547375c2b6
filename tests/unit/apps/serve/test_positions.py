"""What the page is told about positions equals what the modules compute."""

import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from archetype import cost_report, families, load_spec, spec
from archetype.apps.serve.models import ModelOptions, Models
from archetype.apps.serve.positions import positions
from archetype.apps.serve.specs import LengthRequest
from archetype.parts.pattern.blocks import _Others
from archetype.parts.position.frequencies import relative_bucket, rotary_decay, scaled_frequencies
from archetype.parts.position.module import RelativeBias, rotary_frequencies
from archetype.roles.pattern import MaskContext, pattern_rule

MODELS = Models([], ModelOptions(open=lambda place: pytest.fail(place)))
SCALINGS: list[spec.RotaryScaling] = [
    spec.NoScaling(),
    spec.LinearScaling(factor=3.0),
    spec.DynamicScaling(factor=2.0, original_context_length=32),
    spec.YarnScaling(factor=4.0, original_context_length=64),
    spec.YarnScaling(factor=4.0, original_context_length=64, truncate=False, beta_fast=8.0),
    spec.Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=64
    ),
]  # fmt: skip


def ask(name: str, length: int | None = None) -> dict[str, Any]:
    return positions(MODELS, LengthRequest(preset=name, length=length))


def test_angles_equal_those_of_the_module() -> None:
    for scaling in SCALINGS:
        for length in (16, 100):
            rotary = spec.Rotary(theta=500.0, scaling=scaling)
            expected, _ = rotary_frequencies(rotary, 24, torch.tensor([length]))
            torch.testing.assert_close(
                torch.tensor(scaled_frequencies(rotary, 24, length)), expected[0], rtol=1e-5, atol=0
            )


def test_buckets_equal_those_of_the_module() -> None:
    bias = spec.RelativeBias(num_buckets=32, max_distance=100)
    for causal in (True, False):
        ahead = torch.arange(-300, 301)
        expected = RelativeBias(bias, 2, 1, causal).buckets(ahead[None, None])[0, 0]
        assert [relative_bucket(bias, causal, one) for one in ahead.tolist()] == expected.tolist()


def test_the_bound_of_a_score_is_that_of_its_formula() -> None:
    angles = torch.rand(5, dtype=torch.float64)
    sums = torch.polar(torch.ones(5, 7, dtype=torch.float64), angles[:, None] * torch.arange(7)).cumsum(0).abs().sum(0)
    assert rotary_decay(angles.tolist(), range(7)) == pytest.approx((sums / sums[0]).tolist())


def test_patterns_and_states_of_every_preset() -> None:
    kinds = set()
    for name in sorted(name for name in families.presets() if name.endswith("-tiny")):
        model, length = load_spec(name), 40
        if isinstance(model, spec.VisionEncoder):
            length = model.context_length
        answer = ask(name, length)
        assert answer["ok"], answer["problems"]
        report = cost_report(name, length=length)
        assert answer["state"]["bytes"][-1] == report.state["bytes"], name
        assert answer["state"]["per_token"] == report.state["bytes_per_token"], name
        blocks = [(stack, block) for stack in model.stacks for block in stack.layers]
        for layer in answer["layers"]:
            kinds.add((layer["position"] or {}).get("kind"))
            if (pattern := layer["pattern"]) is None:
                continue
            stack, block = next(
                (stack, block)
                for stack, block in blocks
                if layer["path"].startswith(f"{stack.prefix}layers") and block is stack.layers[layer["layers"][0]]
            )
            rule = pattern_rule(getattr(block.mixer, "pattern", spec.Full()))
            context = MaskContext(stack.causal, length, layer["layers"][0])
            cells = [[bool(rule.allows(i, j, context)) for j in range(length)] for i in range(length)]
            assert [[sign == "1" for sign in row] for row in pattern["rows"]] == cells, (name, layer["path"])
            assert pattern["pairs"] == sum(map(sum, cells)) and pattern["cache_length"] == rule.cache_length(length)
    assert kinds >= {"rotary", "alibi", "relative_bias", None}


def test_long_texts_are_shown_at_places_that_are_evenly_spread() -> None:
    """Over all of the text; and the state at every length of its line, not at the last alone."""
    for name in ("llama-tiny", "mistral-tiny", "gemma2-tiny", "mamba-tiny"):
        length = 1000
        answer = ask(name, length)
        lengths, values = answer["state"]["lengths"], answer["state"]["bytes"]
        assert lengths == sorted(lengths) and len(lengths) > 2
        for tokens, value in [*zip(lengths, values, strict=True)][:: max(1, len(lengths) // 8)]:
            assert value == cost_report(name, length=tokens).state["bytes"], (name, tokens)
        for layer in answer["layers"]:
            if (pattern := layer["pattern"]) is None:
                continue
            places = pattern["places"]
            assert len(places) == 96 and places[0] == 0 and places[-1] == length - length // 96 - 1
            assert {b - a for a, b in pairwise(places)} == {10, 11}
            context = MaskContext(True, length, layer["layers"][0])
            rule = pattern_rule(load_spec(name).stacks[0].layers[layer["layers"][0]].mixer.pattern)
            rows = ["".join("01"[bool(rule.allows(i, j, context))] for j in places) for i in places]
            assert pattern["rows"] == rows, (name, layer["path"])


def test_a_length_of_two_billion_is_a_formula_or_refused() -> None:
    """In seconds for all presets together; blocks of random patterns are drawn for the rows that are shown alone."""
    answers = {name: ask(name, 2**31) for name in families.presets() if name.endswith("-tiny")}
    refused = {name for name, answer in answers.items() if not answer["ok"]}
    assert "bert-tiny" in refused and "llama-tiny" not in refused
    assert all("is more than this model's" in answers[name]["problems"][0]["message"] for name in refused)
    assert all(answers[name]["length"] == 2**31 for name in answers.keys() - refused)


def test_rows_of_random_blocks_are_drawn_as_from_a_list() -> None:
    others = _Others(50, {3, 4, 20, 49, 0})
    known = [number for number in range(50) if number not in {3, 4, 20, 49, 0}]
    assert list(others) == known and len(others) == len(known)
    assert random.Random(7).sample(others, 5) == random.Random(7).sample(known, 5)
    long = spec.BigBird(block=64)
    rule, context = pattern_rule(long), MaskContext(causal=False, length=2**31, layer=0)
    assert rule.allows(2**30, 2**30, context) and rule.allows(2**30, 0, context)
