"""What a record says of the machine, and published figures that estimates rest on."""

import pytest
import torch

from archetype.machine import environment
from archetype.machine.hardware import device


def test_the_flags_that_decide_which_kernels_run_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_features", lambda: frozenset({"sse2", "fma", "amx_tile", "avx2"}))
    assert environment.description(torch.device("cpu"))["flags"] == ["avx2", "fma", "amx_tile"]


def test_what_decoding_reaches_is_the_published_rate_of_reading_over_the_peak() -> None:
    """gpt-fast reads 1,397 GB/s on an A100 with 80 GB."""
    a100 = device("a100-80gb")
    assert a100.usual["decode"].share == pytest.approx(1_397e9 / a100.bandwidth, rel=0.01)
