"""The learning rate."""

import math
from itertools import pairwise

import pytest

from archetype.training.schedules import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay


def test_rises_in_a_line_then_falls_by_half_a_cosine() -> None:
    schedule = Cosine(warmup_steps=10, min_lr_ratio=0.1)
    rates = [schedule.learning_rate(2.0, step, 101) for step in range(101)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(0.2 + 1.8 * 0.5)
    assert rates[100] == pytest.approx(0.2)
    assert rates[30] == pytest.approx(0.2 + 1.8 * 0.5 * (1 + math.cos(math.pi * 20 / 90)))


def test_without_warmup_starts_at_the_peak() -> None:
    assert Cosine(warmup_steps=0).learning_rate(1.0, 0, 100) == 1.0


def test_every_schedule_rises_to_the_peak_and_then_has_its_shape() -> None:
    """At half of what is left after the rise, and at the last step."""
    shapes = {
        Linear(warmup_steps=10, min_lr_ratio=0.2): (0.6, 0.2),
        Constant(warmup_steps=10): (1.0, 1.0),
        InverseSquareRoot(warmup_steps=10): (math.sqrt(10 / 61), math.sqrt(10 / 111)),
        WarmupStableDecay(warmup_steps=10, decay_fraction=0.2): (1.0, 0.0),
        WarmupStableDecay(warmup_steps=10, decay_fraction=1.0, decay_shape="linear"): (0.5, 0.0),
        WarmupStableDecay(warmup_steps=10, decay_fraction=1.0, decay_shape="cosine", min_lr_ratio=0.5): (0.75, 0.5),
        WarmupStableDecay(warmup_steps=10, decay_fraction=1.0): (1 - math.sqrt(0.5), 0.0),
    }
    for schedule, (half, last) in shapes.items():
        rates = [schedule.learning_rate(3.0, step, 111) for step in range(111)]
        assert rates[:10] == pytest.approx([0.3 * (step + 1) for step in range(10)])
        assert (rates[60], rates[110]) == (pytest.approx(3 * half), pytest.approx(3 * last)), schedule
        assert all(0 <= later <= rate + 1e-12 for rate, later in pairwise(rates[10:])), schedule
        assert all(schedule.learning_rate(1.0, step, 1) <= 1.0 for step in range(3))


def test_the_fall_at_the_end_begins_where_the_recipe_says() -> None:
    schedule = WarmupStableDecay(warmup_steps=0, decay_fraction=0.25, decay_shape="linear")
    rates = [schedule.learning_rate(1.0, step, 100) for step in range(100)]
    assert rates[:76] == [1.0] * 76 and rates[76] < 1.0
    assert rates[87] == pytest.approx(0.5)


def test_a_decay_however_short_falls_to_its_end() -> None:
    for fraction in (0.001, 0.01, 0.02, 0.3):
        for num_steps in (2, 3, 10, 100):
            schedule = WarmupStableDecay(warmup_steps=0, decay_fraction=fraction, min_lr_ratio=0.25)
            rates = [schedule.learning_rate(1.0, step, num_steps) for step in range(num_steps)]
            assert (rates[0], rates[-1]) == (1.0, 0.25)
    schedule = WarmupStableDecay(warmup_steps=0, decay_fraction=0.0)
    assert schedule.learning_rate(1.0, 9, 10) == 1.0  # none was asked for
    assert WarmupStableDecay(warmup_steps=0).learning_rate(1.0, 0, 1) == 1.0
