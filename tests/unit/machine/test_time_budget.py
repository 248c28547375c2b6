"""Time budgets: work ends after the piece in which the time is over, and its result is that of what was done."""

import itertools
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archetype.api.causal_lm import CausalLM
from archetype.api.language_model import LanguageModel
from archetype.apps.bench.jobs import Timing
from archetype.apps.bench.timed_job import take_turns
from archetype.apps.cli.prompt_file import Prompt, generate_file
from archetype.families.llama import llama
from archetype.generate import Engine
from archetype.machine import time_budget as module
from archetype.machine.time_budget import about_budget, in_time, time_budget
from archetype.models.build import build
from archetype.studies.execute import Stopped
from archetype.studies.sweep import engine
from archetype.tokenizers import train_tokenizer
from archetype.training.stop_signal import stop_on_signal
from tests.unit.studies.small import study, trained

TEXT = "Every token of a text is predicted once: äöü, 世界. " * 3


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    spec = llama(num_layers=1, d_model=16, num_heads=2, d_ff=24, vocab_size=256, context_length=64)
    return LanguageModel(spec, build(spec).eval(), train_tokenizer("bytes", "", None)).expect(CausalLM)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute passes at each look."""
    minutes = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))


@pytest.mark.usefixtures("clock")
def test_the_first_piece_is_always_done_and_a_budget_that_was_enough_ends_nothing() -> None:
    assert about_budget() == {} and [*in_time("abc")] == ["a", "b", "c"]
    with time_budget(2) as budget:
        assert [*in_time("abcdef")] == ["a", "b"] and about_budget() == {"ended_by": "minutes"}
        assert str(budget) == "archetype: --minutes 2 ended this; the result is of what was done"
    with time_budget(0):
        assert [*in_time("a")] == ["a"] and about_budget() == {"ended_by": None}
    assert [*in_time("abc")] == ["a", "b", "c"]


def test_a_score_is_that_of_the_text_so_far(lm: CausalLM, clock: None) -> None:
    with time_budget(2):
        score = lm.score(TEXT, stride=8, length=16)
    assert score.num_tokens == 16 + 8 and score.num_bytes == 25
    whole = lm.score(TEXT[:25], stride=8, length=16)
    assert score.loss == pytest.approx(whole.loss) and score.bits_per_byte == pytest.approx(whole.bits_per_byte)


def test_a_generation_ends_and_a_file_of_prompts_is_continued(lm: CausalLM, clock: None, tmp_path: Path) -> None:
    whole = lm.generate("Every token", max_new_tokens=30, temperature=0)
    with time_budget(5):
        part = lm.generate("Every token", max_new_tokens=30, temperature=0)
    assert len(part) < len(whole) and whole.startswith(part)
    prompts = [Prompt(f"line {n}", n, f"Text {n}", None, {}) for n in range(6)]
    settings: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
    with time_budget(14):
        first = generate_file(lm, Engine(lm, 1), prompts, tmp_path / "out.jsonl", settings)
    assert 0 < first["finished"] < 6
    second = generate_file(lm, Engine(lm, 1), prompts, tmp_path / "out.jsonl", settings)
    assert second["before"] == first["finished"] and second["before"] + second["finished"] == 6
    assert (tmp_path / "out.jsonl").read_text().count('"length"') == 6


def test_repetitions_end_after_the_first(clock: None) -> None:
    with time_budget(0):
        assert len(take_turns({"a": lambda: Timing(1.0)}, 5)["a"]) == 1


def test_training_stops_as_by_a_signal_and_a_study_continues(clock: None, tmp_path: Path) -> None:
    with time_budget(0), stop_on_signal() as stop:
        assert stop.poll() and stop.signal == signal.SIGTERM
    one = study(tmp_path, "full", trained(seeds=1))
    with time_budget(12), pytest.raises(Stopped):
        one.run(engine("here", 1))
    states = {file.name for file in (tmp_path / "store" / "runs").glob("*/state.*")}
    assert "state.pending" in states and "state.failed" not in states
    one.run(engine("here", 1))
    assert not one.needed()


def test_an_engine_without_a_budget_is_not_ended(lm: CausalLM) -> None:
    assert len(lm.generate(["a", "b"], max_new_tokens=4, ignore_eos=True)) == 2
    assert torch.is_grad_enabled()
