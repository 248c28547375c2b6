"""A report has what was measured: each number is that of evaluating the run's weights apart, a planted difference is
found, and only what diverges is called so, whatever kinds a text is joined from.
"""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype.data.held_out import split
from archetype.errors import SpecError
from archetype.runs.directory import Run, read_run_model
from archetype.studies import store as stores
from archetype.studies.report import summary_text, write_reports
from archetype.studies.store import RunRequest, RunResult, Store
from archetype.studies.study import Study
from archetype.studies.sweep import engine
from archetype.training.evaluate import evaluate
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.setup import _read_objective
from tests.helpers.examples import every
from tests.unit.studies.pretended import LOSS_BY_RATE, Pretended
from tests.unit.studies.small import BASE, experiment, trained

LENGTH, NOISE = 40_000, 0.05
GAIN = 1 + NOISE * math.log2(NOISE) + (1 - NOISE) * math.log2(1 - NOISE)  # bits that the letter before the last tells
MODEL = {"kind": "ngram", "vocab_size": 256, "context_length": 32, "n": 2, "d_model": 8, "hidden": [32]}
ARMS = {"two": {}, "one": {"n": 1}, "high": {"recipe.optimizer.learning_rate": 30.0},
        "huge": {"recipe.optimizer.learning_rate": 3e38}}  # fmt: skip


def every_other(generator: random.Random, count: int) -> str:
    """Letters of which each is the last but one, but for some noise: the last one tells nothing of it."""
    bits = [0, 1]
    for _ in range(count - 2):
        bits.append(bits[-2] ^ (generator.random() < NOISE))
    return "".join("ab"[bit] for bit in bits)


def noise(generator: random.Random, count: int) -> str:
    return "".join(generator.choices("uvwxyz", k=count))


def words(generator: random.Random, count: int) -> str:
    return " ".join(generator.choices(["the", "cat", "sat", "mat"], k=count))[:count]


def joined(
    folder: Path, kinds: list[Any], shares: list[float], where: str, arms: dict[str, Any], seeds: int, seed: int = 0
) -> Study:
    """The study of a text joined from parts."""
    generator = random.Random(seed)
    parts = [kind(generator, round(share * LENGTH)) for kind, share in zip(kinds, shares, strict=True)]
    (folder / "joined.txt").write_text("".join(parts))
    part = {
        "id": "arms", "type": "trained", "says": "The letter before the last tells more", "base": MODEL, "arms": arms,
        "data": "joined", "seeds": seeds, "decide": {"kind": "difference", "side": "worse"},
        "recipe": {"batch_size": 16, "optimizer": {"kind": "adamw", "learning_rate": 0.03}, "evaluate_every": 100},
        "modes": {"full": {"tokens": 200 * 16 * 32}},
    }  # fmt: skip
    return Study(experiment(part, split=where), "full", folder, Store(folder / "store"))


def apart(store: Path, key: str, test: str) -> tuple[float, float, float]:
    """Bits a byte and loss of a run's weights on the test text, and the loss on all of its validation text."""
    run = Run(store / "runs" / key / "run")
    scored = archetype.load(run.folder).score(test)
    recipe = read_recipe(run.recipe_file)
    model = read_run_model(run, device=torch.device("cpu"))
    evaluation = evaluate(model, _read_objective(run, recipe, model.spec)[1], "float32")
    assert evaluation is not None
    return scored.bits_per_byte, scored.loss, evaluation.loss


@pytest.mark.parametrize("where", every(2, ["everywhere", "end"]))
@pytest.mark.parametrize("seed", every(6, range(6)))
def test_each_number_of_a_report_is_that_of_the_run_evaluated_apart(tmp_path: Path, seed: int, where: str) -> None:
    generator = random.Random(seed)
    kinds = generator.sample([every_other, noise, words, every_other], 4)
    shares = [generator.uniform(0.5, 1.0) for _ in kinds]
    shares = [share / sum(shares) for share in shares]
    study, store = joined(tmp_path, kinds, shares, where, ARMS, 1, seed), tmp_path / "store"
    study.run(engine("here", 1))
    (part,) = (outcome := study.outcome())["parts"]
    first, test = part["comparisons"][0], (store / study.trained["arms"].data[0].test).read_text()
    assert first["diverged"] == {"two": [False], "one": [False], "high": [True], "huge": [True]}
    for arm, keys in part["runs"].items():
        for number, key in enumerate(keys):
            bits, loss, validation = apart(store, key, test)
            losses = {name: many[number] for name, many in first["losses"][arm].items()}
            for reported, measured, rel in (
                (first["values"][arm][number], bits, 1e-9),
                (losses["test"], loss, 1e-9),
                (losses["validation"], validation, 1e-6),
            ):
                # what is not finite gets no number, and only diverged runs have that
                finite = math.isfinite(measured)
                assert reported == (pytest.approx(measured, rel=rel) if finite else None)
                assert finite or arm in ("high", "huge")
    (training,), _, (tested,) = first["losses"]["two"].values()
    assert training < math.log(256) / 2 and (where == "end" or abs(tested - training) < 0.25)
    text = summary_text(outcome)
    assert "1 of 1 runs of high diverged." in text and "validation" in text
    assert json.loads(json.dumps(outcome, allow_nan=False)) and len(write_reports(outcome, tmp_path / "reports")) > 3


class Overflowing(Pretended):
    """Runs of the wide arm that have no finite loss, from the seed `first` on."""

    first = 0

    def result(self, request: RunRequest) -> RunResult | None:
        result, spec = super().result(request), request.recipe.spec
        is_lost = isinstance(spec, dict) and spec["d_model"] > 8 and request.recipe.seed >= self.first
        values = dict.fromkeys(result.values, math.inf) if result else {}
        return replace(result, values=values, has_diverged=True) if result and is_lost else result


@pytest.mark.parametrize(("first", "effect"), [(5, pytest.approx(-0.05, abs=0.01)), (0, None)])
def test_a_run_without_a_finite_loss_gets_no_number_and_its_arm_no_verdict(
    tmp_path: Path, first: int, effect: Any
) -> None:
    store = Overflowing(tmp_path / "store", LOSS_BY_RATE)
    store.first = first
    study = Study(experiment(trained(seeds=8)), "full", tmp_path, store)
    while requests := study.needed():
        store.make(requests)
    (part,) = (outcome := study.outcome())["parts"]
    lost = 8 - first
    assert part["reason"] == f"diverged: {lost} of 8 runs of wide ended without a finite loss"
    assert part["effect"]["effect"][0] == effect and part["comparisons"][0]["values"]["wide"][first:] == [None] * lost
    text = summary_text(outcome) + write_reports(outcome, tmp_path / "reports")[0].read_text()
    assert f"{lost} of 8 runs of wide diverged." in text and "not finite" in text and "inf" not in text.split()
    assert ("over 5 pairs of seeds" in text) == (first == 5) and ("wide cannot be judged" in text) == (first == 0)
    assert json.dumps(outcome, allow_nan=False)


def test_a_planted_difference_is_found_with_its_interval_over_other_text(tmp_path: Path) -> None:
    """Of a text that is half of one kind: half of what the second letter tells, between the interval's ends."""
    study = joined(tmp_path, [every_other, noise], [0.5, 0.5], "everywhere", {"two": {}, "one": {"n": 1}}, 2)
    study.run(engine("here", 1))
    (part,) = study.outcome()["parts"]
    effect, text = part["effect"], (tmp_path / "store" / study.trained["arms"].data[0].test).read_text()
    share = sum(letter in "ab" for letter in text) / len(text)
    assert share == pytest.approx(0.5, abs=0.05) and effect["effect"][0] == pytest.approx(GAIN * share, rel=0.1)
    mean, low, high = effect["over_examples"]
    assert mean == pytest.approx(effect["effect"][0], rel=1e-6) and low < GAIN * share < high
    assert high - low > 0.1  # passages of noise have no difference, and those of the other all of it
    assert "over other test data of this kind too" in " ".join(part["sentences"])


def test_the_parts_of_a_study_s_text_are_apart_and_of_all_kinds(tmp_path: Path) -> None:
    study = joined(tmp_path, [every_other, noise], [0.8, 0.2], "everywhere", {"two": {}, "one": {"n": 1}}, 2)
    data = study.trained["arms"].data[0]
    learned, test = ((tmp_path / "store" / name).read_text() for name in (data.recipe["text"][0], data.test))
    train, validation = split(learned, data.recipe["validation_fraction"], data.recipe["split"])
    assert sorted(train + validation + test) == sorted((tmp_path / "joined.txt").read_text())
    for part, share in ((train, 0.9), (validation, 0.05), (test, 0.05)):
        assert len(part) == pytest.approx(share * LENGTH, rel=0.03)
        assert sum(letter in "ab" for letter in part) / len(part) == pytest.approx(0.8, abs=0.1)
    guess = data.baseline  # of the letters' shares: each text has its own
    for name, text in (("validation_loss", validation), ("loss", test)):
        expected = sum(-math.log((train.count(letter) + 1) / (len(train) + 256)) for letter in text) / len(text)
        assert guess[name] == pytest.approx(expected, rel=1e-6)


def test_the_key_of_a_run_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store finds its runs by this key, which omits some settings at their neutral values."""
    monkeypatch.setattr(stores, "CODE", "0")
    monkeypatch.setattr(torch, "__version__", "0")
    recipe = Recipe.parse({"spec": BASE, "data": {"text": ["a"], "tokenizer": "bytes", "split": "end"}})
    assert RunRequest(recipe, "", (), "", "cpu").key == "c335ab5e1463d34f72ee"
    everywhere = recipe.replace(data=recipe.data.replace(split="everywhere"))
    assert RunRequest(everywhere, "", (), "", "cpu").key != "c335ab5e1463d34f72ee"
    assert len({experiment(trained(data="text"), split=one).hash for one in ("end", "everywhere")}) == 2
    with pytest.raises(SpecError, match="split: applies to text data, and no part has any; remove it"):
        experiment(trained(), split="end")
