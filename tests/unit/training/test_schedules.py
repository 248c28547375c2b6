"""The learning rate."""

import math

import pytest

from archetype.training.schedules import Cosine


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
