"""From an experiment file to its verdict: trials, pairs, calibration, reports."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archetype.errors import SpecError
from archetype.spec.base import fingerprint
from archetype.studies.arms import quantities
from archetype.studies.budgets import equal_budgets
from archetype.studies.calibration import MUST_GIVE, read_calibration
from archetype.studies.claims import CHECKOUT
from archetype.studies.corpora import StudyData, prepare
from archetype.studies.evidence import DIRECTION, NO_DIFFERENCE, NOT_SHOWN, SHOWN, UNCALIBRATED
from archetype.studies.overview import write_overview
from archetype.studies.registry import load_checks
from archetype.studies.report import keep_outcome, summary_text, write_reports
from archetype.studies.settings import Metric
from archetype.studies.store import RunRequest, RunResult, Store, set_state
from archetype.studies.study import Study
from archetype.studies.trained import TrainedStudy
from archetype.studies.trials import extend
from archetype.studies.verdicts import verdict_of_arms
from archetype.tokenizers import open_tokenizer, train_tokenizer
from archetype.training.schedules import Cosine
from tests.unit.studies.pretended import GRID, LOSS_BY_RATE, Pretended, calibrating, pretended
from tests.unit.studies.small import RECIPE, experiment, study, trained


def part_of(one: Study) -> TrainedStudy:
    return one.trained["width"]


def test_trials_come_first_and_the_same_for_every_arm(tmp_path: Path) -> None:
    one, store = pretended(tmp_path, "full", trained(seeds=6, tune={"grid": GRID, "seeds": [900], "extend": 2}))
    trials, comparisons = part_of(one).comparisons()
    rates = [request.recipe.optimizer.learning_rate for request in store.asked]
    assert rates[:6] == [0.001, 0.001, 0.01, 0.01, 0.1, 0.1] and rates[6:8] == [1.0, 1.0]  # both arms' grid grows
    assert trials.is_interior and set(trials.best.values()) == {(0.1,)}
    assert {request.recipe.seed for request in store.asked[:8]} == {900}
    assert [request.recipe.seed for request in store.asked[8:]] == [seed for seed in range(6) for _ in "ab"]
    assert set(rates[8:]) == {0.1} and len(comparisons[0].values["wide"]) == 6


def test_a_best_trial_at_the_edge_caps_the_verdict(tmp_path: Path) -> None:
    falling = {rate: 1 / rate for rate in LOSS_BY_RATE}
    one, _ = pretended(
        tmp_path, "full", trained(seeds=6, tune={"grid": GRID, "extend": 1}), losses=falling, spread=0.001
    )
    (part,) = one.outcome()["parts"]
    assert part["reason"].startswith("tuning") and part["tuning"]["is_interior"] is False


@pytest.mark.parametrize(("best", "chosen"), [((0.001, 0.01, 0.1), 0.01), ((0.01, 0.1), 0.01), ((0.001, 0.01), 0.01)])
def test_trials_that_tie_are_decided_towards_the_middle(tmp_path: Path, best: tuple[float], chosen: float) -> None:
    losses = {rate: 1.0 if rate in best else 2.0 for rate in LOSS_BY_RATE}
    one, store = pretended(tmp_path, "full", trained(seeds=6, tune={"grid": GRID, "extend": 1}), losses=losses)
    trials, _ = part_of(one).comparisons()
    assert trials.is_interior and set(trials.best.values()) == {(chosen,)}
    assert {request.recipe.optimizer.learning_rate for request in store.asked} == {0.001, 0.01, 0.1}  # none longer


class Scored(Pretended):
    """Runs that diverge at a rate of 0.1, where their loss is the lowest, or are right most often at one of 0.001."""

    def result(self, request: RunRequest) -> RunResult | None:
        result, rate = super().result(request), request.recipe.optimizer.learning_rate
        accuracy = {0.001: 0.9, 0.01: None, 0.1: 0.4}.get(rate, 0.1)
        return result and replace(result, has_diverged=rate == 0.1, validation_accuracy=accuracy)


@pytest.mark.parametrize(("metric", "chosen"), [("test.loss", 0.01), ("test.accuracy", 0.001)])
def test_trials_are_judged_by_the_metric_and_one_that_diverged_is_the_worst(
    tmp_path: Path, metric: str, chosen: float
) -> None:
    part = trained(seeds=2, tune={"grid": GRID, "seeds": [900], "extend": 0}, metric={"name": metric})
    store = Scored(tmp_path / "store", LOSS_BY_RATE)
    one = part_of(Study(experiment(part), "full", tmp_path, store))
    store.make(one.needed())
    trials, _ = one.trials()
    assert set(trials.best.values()) == {(chosen,)}
    assert all(scores[0.1,] == math.inf for scores in trials.losses.values())


@pytest.mark.parametrize(
    ("values", "at_end", "longer"),
    [
        ([0.01, 0.001, 0.1], True, [0.001, 0.01, 0.1, 1.0]),
        ([0.01, 0.001, 0.1], False, [0.0001, 0.001, 0.01, 0.1]),
        ([1.0, 2.0, 8.0], False, [0.5, 1.0, 2.0, 8.0]),
        ([1.0, 2.0, 8.0], True, [1.0, 2.0, 8.0, 32.0]),
        ([8, 16, 32], False, [4, 8, 16, 32]),
    ],
)
def test_a_grid_grows_by_the_factor_of_its_last_two_values(
    values: list[float], at_end: bool, longer: list[float]
) -> None:
    extend(values, at_end)
    assert values == longer and {*map(type, values)} == {type(longer[0])}


def test_verdicts_wait_for_a_calibration_and_quick_gives_none(tmp_path: Path) -> None:
    one, store = pretended(tmp_path, "full", trained(seeds=8))
    assert one.outcome()["parts"][0]["verdict"] == UNCALIBRATED
    quick, _ = pretended(tmp_path / "quick", "quick", trained(seeds=8))
    assert quick.outcome()["parts"][0]["verdict"] == DIRECTION
    calibration, _ = pretended(tmp_path, "full", *calibrating(), is_calibration=True)
    parts = {part["id"]: part["verdict"] for part in calibration.outcome()["parts"]}
    assert parts == MUST_GIVE
    about = read_calibration(store)
    assert about is not None and about["passed"] and about["deviation"] > 0
    assert one.outcome()["parts"][0]["verdict"] == SHOWN


def test_a_calibration_that_fails_gives_no_verdicts(tmp_path: Path) -> None:
    one, store = pretended(tmp_path, "full", *calibrating(), is_calibration=True, gain=0.0)
    assert {part["id"]: part["verdict"] for part in one.outcome()["parts"]}["twice-as-wide"] != SHOWN
    about = read_calibration(store)
    assert about is not None and not about["passed"]
    other, _ = pretended(tmp_path, "full", trained(seeds=8))
    assert other.outcome()["parts"][0]["verdict"] == UNCALIBRATED
    with pytest.raises(SpecError, match="a calibration needs the parts same, twice-as-wide"):
        study(tmp_path, "full", trained(), is_calibration=True)


def test_a_control_that_learned_nothing_gives_no_verdict(tmp_path: Path) -> None:
    pretended(tmp_path, "full", *calibrating(), is_calibration=True)[0].outcome()
    guess = part_of(study(tmp_path, "full", trained())).arms["a"].data.baseline["loss"]
    for loss, verdict, reason in (
        (guess - 0.05, NOT_SHOWN, "control failed: 8 of 8 runs of a learned no more than a guess"),
        (guess - 0.2, SHOWN, "the mean of 8 pairs"),
    ):
        one, _ = pretended(tmp_path, "full", trained(seeds=8), losses={0.01: loss}, gain=0.5)
        (part,) = one.outcome()["parts"]
        assert part["verdict"] == verdict and part["reason"].startswith(reason)
        is_said = any("cannot be judged: control failed: 8 of 8" in sentence for sentence in part["sentences"])
        assert is_said == (verdict == NOT_SHOWN)
    tests = [{"verdict": NOT_SHOWN, "reason": "control failed: no run learned", "is_supported": False}] * 2
    assert verdict_of_arms("a", tests)["reason"] == f"of 2 arms against a 2 {NOT_SHOWN}; control failed: no run learned"


def test_a_guess_is_counted_in_the_tokens_that_a_model_learns(tmp_path: Path) -> None:
    words = random.Random(0).choices(["the", "cat", "sat", "on", "a", "mat"], k=20_000)
    (tmp_path / "words.txt").write_text(" ".join(words))
    in_bytes = prepare("words", tmp_path, tmp_path / "store").baseline
    source = {"text": "words", "tokenizer": "byte_bpe", "vocab_size": 300}
    in_words = prepare(source, tmp_path, tmp_path / "store", "end").baseline
    assert in_words["loss"] == pytest.approx(math.log(6), rel=0.01)  # six words, drawn alike
    text = " ".join(words)
    counts = Counter(text)
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    assert in_bytes["validation_loss"] == pytest.approx(entropy * math.log(2), rel=0.01)
    assert in_bytes["loss"] == pytest.approx(entropy * math.log(2), rel=0.01)
    assert prepare("words", tmp_path, tmp_path / "store").baseline == in_bytes


def test_a_corpus_read_in_another_way_has_a_tokenizer_and_a_key_of_its_own(tmp_path: Path) -> None:
    """What is kept in the store is known by all that it was made with."""
    words = random.Random(0).choices(["The", "CAT", "sat", "on", "a", "mat"], k=6_000)
    (tmp_path / "words.txt").write_text(" ".join(words))

    def prepared(**changes: object) -> StudyData:
        source = {"text": "words", "tokenizer": "byte_bpe", "vocab_size": 270} | changes
        return prepare(source, tmp_path, tmp_path / "store")

    def tokens(data: StudyData) -> list[int]:
        return open_tokenizer(tmp_path / "store" / data.recipe["tokenizer"]).encode("The CAT")

    plain, lower, share = prepared(), prepared(lowercase=True), prepared(validation_fraction=0.5)
    assert len({data.recipe["tokenizer"] for data in (plain, lower, share)}) == 3
    assert tokens(plain) != tokens(lower) and plain.baseline != lower.baseline
    assert prepared() == plain and plain.recipe["tokenizer"].endswith("tokenizer-byte_bpe-270")
    folder = tmp_path / "tokenizer"
    before, digests = [], set()
    for text in ("The CAT sat", "on a mat"):
        folder.mkdir(exist_ok=True)
        train_tokenizer("byte_bpe", text, 262).save(folder)
        before.append(prepared(tokenizer=str(folder), vocab_size=None))
        digests.add(before[-1].sha256)
    assert len(digests) == 2 and before[0].baseline != before[1].baseline


def test_another_corpus_must_agree_in_sign(tmp_path: Path) -> None:
    pretended(tmp_path, "full", *calibrating(), is_calibration=True)[0].outcome()
    other = {"kind": "recall", "symbols": 10, "num_pairs": 2, "length": 8, "held_out_rows": 8}
    part = trained(seeds=8)
    part["data"] = [part["data"], other]
    one, store = pretended(tmp_path, "extended", part)
    assert len(store.asked) == 16 + 8
    assert one.outcome()["parts"][0]["verdict"] == SHOWN
    names = [comparison["name"] for comparison in one.outcome()["parts"][0]["comparisons"]]
    assert names == ["recall", "recall"]
    result = Pretended.result

    def reversed_there(self: Pretended, request: RunRequest) -> RunResult | None:
        self.gain = -0.05 if request.recipe.data.symbols == 10 else 0.05  # type: ignore[attr-defined]
        return result(self, request)

    store.result = reversed_there.__get__(store)  # type: ignore[method-assign]
    (part,) = one.outcome()["parts"]
    assert part["verdict"] == NOT_SHOWN and part["reason"].startswith("recall does not agree")


def test_arms_that_learn_from_other_numbers_of_tokens_are_told_apart_or_refused(tmp_path: Path) -> None:
    def part(rows: int) -> dict[str, Any]:
        return trained(arms={"a": {}, "b": {"recipe.batch_size": rows}})

    told = {8: "Each of 4 runs learned from 192 tokens of recall.", 5: "from 192 (a) or 200 (b) tokens of recall."}
    for rows, sentence in told.items():
        outcome = pretended(tmp_path / str(rows), "full", part(rows))[0].outcome()
        assert outcome["parts"][0]["sentences"][0].endswith(sentence)
    with pytest.raises(SpecError, match=r"arms\.b: trains on 256 tokens, but the control on 192; use more tokens"):
        study(tmp_path, "full", part(16))


def test_equivalence_is_what_is_claimed_where_it_is(tmp_path: Path) -> None:
    pretended(tmp_path, "full", *calibrating(), is_calibration=True)[0].outcome()
    part = trained(seeds=8, decide={"kind": "equivalence", "margin": "3%"})
    one, _ = pretended(tmp_path, "full", part, gain=0.0)
    outcome = one.outcome()
    assert outcome["verdict"] == outcome["parts"][0]["verdict"] == NO_DIFFERENCE
    assert outcome["parts"][0]["is_supported"]


def test_without_training_parts_say_that_they_were_not_run(tmp_path: Path) -> None:
    load_checks(CHECKOUT)
    check = {"id": "blocks", "type": "analytic", "says": "It grows", "check": "counting.gpt3"}
    parts = [check, trained()]
    left_out = Study(experiment(*parts, claim=13), "full", tmp_path, Store(tmp_path / "store"), exact=True)
    outcome = left_out.outcome()
    assert not left_out.needed() and outcome["verdict"] == "shown; 1 of 2 parts not run"
    assert outcome["parts"][1]["reason"] == "it is trained by `archetype compare claim 13`"
    files = write_reports(outcome, tmp_path / "reports")
    assert all("not run" in file.read_text() for file in files[:2])
    write_overview(tmp_path / "reports")
    assert "1 of 2 parts not run" in (tmp_path / "reports" / "overview.md").read_text()
    done, store = pretended(tmp_path, "full", *parts, claim=13)  # once its runs are there, they are reported
    (store.folder / "runs").mkdir(parents=True)
    again = Study(done.experiment, "full", tmp_path, store, exact=True).outcome()
    assert again["parts"][1]["verdict"] == UNCALIBRATED and len(again["parts"][1]["comparisons"]) == 1


def test_runs_are_read_at_equal_budgets_before_the_learning_rate_falls(tmp_path: Path) -> None:
    part = trained(modes={"full": {"tokens": 640}}, recipe=RECIPE | {"schedule": {"kind": "wsd", "warmup_steps": 3}})
    arms = study(tmp_path, "full", part).trained["width"].arms
    steps, costs = arms["a"].recipe.steps, {name: quantities(arm)["flops_per_token"] for name, arm in arms.items()}
    assert steps == 20

    def runs(slope: float) -> list[RunResult]:
        return [
            RunResult({}, False, {}, [(s, 4 + seed - slope * s) for s in range(2, 21, 2)], 0, 0, tmp_path)
            for seed in (0, 1)
        ]

    results = {"a": runs(0.1), "wide": runs(0.12)}
    tokens, flops = equal_budgets(arms, results, "a", ("wide",))
    ratio, mean = costs["wide"] / costs["a"], 4.5
    assert ratio > 1.5
    for row, factor, amount in ((tokens, 1.0, 16 * 32), (flops, ratio, 16 * 32 * costs["a"])):
        assert row["amount"] == pytest.approx(
            amount
        )  # the last evaluation before the decay, of the arm that spends less
        assert row["losses"] == pytest.approx({"a": mean - 1.6, "wide": mean - 0.12 * 16 / factor})
        assert row["differences"]["wide"] == pytest.approx([1.6 - 0.12 * 16 / factor] * 3)
    diverged = results | {"wide": [replace(run, has_diverged=True) for run in results["wide"]]}
    assert equal_budgets(arms, diverged, "a", ("wide",)) == []
    cosine = {name: replace(arm, recipe=arm.recipe.replace(schedule=Cosine())) for name, arm in arms.items()}
    assert equal_budgets(cosine, results, "a", ("wide",)) == []


def test_reports_are_whole_and_say_what_was_predicted(tmp_path: Path) -> None:
    pretended(tmp_path, "full", *calibrating(), is_calibration=True)[0].outcome()
    tune = {"grid": GRID, "seeds": [900]}
    wrong = trained(seeds=8, tune=tune, expect={"verdict": "no difference shown", "source": "a paper"})
    one, store = pretended(tmp_path, "full", wrong, claim=5)
    outcome = one.outcome()
    assert json.loads(json.dumps(outcome, allow_nan=False)) == outcome
    files = write_reports(outcome, tmp_path / "reports")
    assert [file.name for file in files] == [
        "claim-05.md", "claim-05.json", "claim-05-width-loss-1.svg", "claim-05-width-trials.svg", "claim-05.html",
    ]  # fmt: skip
    text, _, losses, trials, _ = (file.read_text() for file in files)
    for shown in (
        "surprise",
        "a paper",
        "What would have changed this verdict",
        outcome["hash"],
        "wide is better than a in test loss",
        "Trials",
    ):
        assert shown in text
    assert losses.count("<polyline") == losses.count("<polygon") == 2 and trials.count("<circle") == 8  # the grid grew
    assert "](claim-05-width-loss-1.svg)" in text and "](claim-05-width-trials.svg)" in text
    write_overview(tmp_path / "reports")
    overview = (tmp_path / "reports" / "overview.md").read_text()
    assert "Otherwise than predicted" in overview and "[Width](claim-05.md)" in overview
    assert (
        json.loads((tmp_path / "reports" / "overview.json").read_text())["claims"][0]["parts"][0]["surprise"]
        == "surprise"
    )
    other = outcome | {"claim": None, "title": "Depth"}  # a study of one's own, in the same folder
    write_reports(other, tmp_path / "reports")
    write_overview(tmp_path / "reports")
    overview, _, after = (tmp_path / "reports" / "overview.md").read_text().partition("## Other studies")
    assert "Depth, " in overview and "[Depth](depth.md)" in after and "[Width]" not in after
    rows = json.loads((tmp_path / "reports" / "overview.json").read_text())
    assert [row["title"] for row in rows["claims"]] == ["Width"] and [row["title"] for row in rows["others"]] == [
        "Depth"
    ]
    assert keep_outcome(outcome, store).is_file()
    assert "claim 5: Width: shown" in summary_text(outcome)


def test_metrics_that_differ_by_their_name_alone_are_measured_apart(tmp_path: Path) -> None:
    """Also in a store whose measurements are named without the metric's name: the metric in the file decides."""
    loss, accuracy = (Metric.parse({"name": name}) for name in ("test.loss", "test.accuracy"))
    assert loss.key != accuracy.key and fingerprint(loss) == fingerprint(accuracy) == Metric().key
    request = study(tmp_path).needed()[0]
    store = Store(tmp_path / "other")
    folder = store.run_folder(store.add(replace(request, metrics=(loss,))))
    about = {"has_diverged": False, "validation": [], "validation_loss": 1.0, "validation_accuracy": None}
    set_state(folder, "done", about)
    (folder / "measured").mkdir()
    measured = {"metric": loss.dump(), "value": 1.5, "loss": 1.5}
    (folder / "measured" / f"{fingerprint(loss)}.json").write_text(json.dumps(measured))
    result = store.result(replace(request, metrics=(loss,)))
    assert result is not None and result.values == {loss.key: 1.5}
    assert store.result(replace(request, metrics=(accuracy,))) is None
