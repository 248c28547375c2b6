"""The numbers of the web UI's bar: the share of the bandwidth that engines use is never above one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import archetype
from archetype.apps.serve import engine_bar
from archetype.apps.serve.engine_bar import EngineBar


def test_an_engine_that_reads_faster_than_was_measured_is_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_bar, "bytes_of_step", lambda spec, nbytes: 1000)
    times = iter((10.0, 11.0))
    monkeypatch.setattr(engine_bar.time, "perf_counter", lambda: next(times))
    stats = SimpleNamespace(
        generated_tokens=0, steps=0, state_bytes=0, cache_use=0.0, waiting=0, running=1, prefix_bytes=0
    )
    engine = SimpleNamespace(stats=lambda: stats, slots=1)
    lm = SimpleNamespace(spec=archetype.load_spec("llama-tiny"), model=SimpleNamespace(device=torch.device("cpu")))
    model: Any = SimpleNamespace(
        worker=SimpleNamespace(engine=engine, num_unfinished=1), lm=lm, name="m", fingerprint="f", nbytes=1000
    )
    for measured, bandwidth in ((0.0, 0), (500.0, 7000), (9000.0, 9000)):
        bar, before = EngineBar(cast("Any", None), lambda: False), {}
        bar._bandwidth["cpu"], stats.steps, times = measured, 0, iter((10.0, 11.0))
        bar._row(model, before)
        stats.steps = 7  # in one second
        row = bar._row(model, before)
        assert (row["bytes_per_second"], row["bandwidth"]) == (7000, bandwidth)
