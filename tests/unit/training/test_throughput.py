"""The time of a step is that of a machine that has warmed up, and never that of a compiler."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import archetype
from archetype.apps.cli.demo import demo_spec
from archetype.families import preset
from archetype.models.build import build_on_meta
from archetype.native.library import library
from archetype.spec import Decoder
from archetype.training import throughput
from archetype.training.recipe import Recipe
from archetype.training.throughput import LONG, NUM_STEPS, seconds_per_step


@pytest.mark.parametrize(
    ("durations", "expected", "count"),
    [
        ([30.0, 0.1, 0.2, 0.1, 0.3, 0.1], 0.1, 1 + NUM_STEPS),  # a first step that compiles, or loads a library
        ([9.0, LONG + 1], LONG + 1, 2),
        ([9.0, LONG / 2, LONG / 2 + 1], LONG / 2 + 0.5, 3),
    ],
)
def test_the_first_step_never_counts(
    durations: list[float], expected: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, steps = [0.0], iter(durations)
    taken: list[float] = []

    def take(state: object) -> None:
        taken.append(next(steps))
        clock[0] += taken[-1]

    monkeypatch.setattr(throughput, "take_step", take)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock[0])
    spec = demo_spec()
    assert seconds_per_step(Recipe(spec=spec.dump(), batch_size=1, steps=1), spec) == pytest.approx(expected)
    assert len(taken) == count


@pytest.fixture
def not_opened() -> Iterator[None]:
    library.cache_clear()
    yield
    library.cache_clear()


def test_kernels_are_there_before_a_model_is_timed(not_opened: None, tmp_path: Path) -> None:
    """Whoever builds or loads a model waits for them, and no step does; whoever only counts does not."""
    lm = archetype.LanguageModel(preset("llama-tiny"), archetype.build("llama-tiny"))
    assert library.cache_info().currsize == 1
    lm.save(tmp_path / "run")
    archetype.export(lm, tmp_path / "hf")
    for folder in ("run", "hf"):
        library.cache_clear()
        archetype.load(tmp_path / folder)
        assert library.cache_info().currsize == 1
    library.cache_clear()
    spec = preset("llama-tiny")
    assert isinstance(spec, Decoder)
    build_on_meta(spec)
    assert library.cache_info().currsize == 0
