"""Lines, intervals, times and FLOPs: what the checks of claims measure with."""

import time

import pytest
import torch

from claims import timing
from claims.counted import counted_flops
from claims.fit import bootstrap, line, mean_interval, power_law


def test_a_line_and_a_power_law_are_recovered() -> None:
    assert line([1, 2, 4], [5, 7, 11]) == pytest.approx((2, 3, 1))
    assert power_law([1, 10, 100], [3, 3e3, 3e6]).slope == pytest.approx(3)
    noisy = line(range(50), [x + 10 * (-1) ** x for x in range(50)])
    assert 0.5 < noisy.r_squared < 0.99 and noisy.slope == pytest.approx(1, abs=0.05)


def test_an_interval_holds_what_it_should_as_often_as_it_should() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(200, 20, generator=generator, dtype=torch.float64).tolist()
    covered = sum(low < 0 < high for low, high in map(mean_interval, samples))
    assert 175 <= covered <= 199  # of 95 %, a little fewer with few repeats
    assert bootstrap([2.0] * 5) == (2.0, 2.0)


def test_times_are_compared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def way(name: str, seconds: float) -> None:
        calls.append(name)
        clock[0] += seconds * (1 + 0.1 * len(calls))  # a machine that grows slower

    ratio = timing.compare(lambda: way("a", 3.0), lambda: way("b", 2.0), rounds=4)
    assert "".join(calls) == "abba" * 5
    assert ratio.median == pytest.approx(1.5) and ratio.low == pytest.approx(ratio.high)


def test_products_are_counted() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert counted_flops(lambda: a @ b) == 2 * 3 * 4 * 5
    q = torch.ones(1, 2, 7, 8)
    attention = torch.nn.functional.scaled_dot_product_attention
    assert counted_flops(lambda: attention(q, q, q)) == 2 * 2 * 2 * 7 * 7 * 8
