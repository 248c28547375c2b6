"""Arms that start from trained weights: their donor is the control, what they keep of it, and what is no effect."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.api.causal_lm import CausalLM
from archetype.api.loading import load
from archetype.api.transplanting import save, transplant
from archetype.errors import ArchetypeError, DataError
from archetype.evaluation.tasks import TaskScores
from archetype.runs.directory import Run
from archetype.spec.edit import assign
from archetype.studies import chosen
from archetype.studies.evidence import NO_DIFFERENCE
from archetype.studies.experiment import read_experiment
from archetype.studies.metric_values import measure
from archetype.studies.parts import TrainedPart
from archetype.studies.pictures import pictures_of
from archetype.studies.recall import NUM_PAIRS, recalled, texts
from archetype.studies.report import markdown, summary_text
from archetype.studies.retention import name_of
from archetype.studies.run_time import RunTime, time_of_run
from archetype.studies.settings import Metric
from archetype.studies.start import start_from, weights_hash
from archetype.studies.store import Store
from archetype.studies.study import Study
from archetype.studies.sweep import engine
from archetype.studies.trained import TrainedStudy
from archetype.tokenizers import train_tokenizer
from archetype.training import loop, setup
from archetype.training.recipe import Recipe
from tests.helpers.cases import case
from tests.unit.studies.small import BASE, RECIPE, experiment, trained

SPEC = BASE | {"vocab_size": 256, "context_length": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a donor that has learned it a little, its copy, and a transplant with fewer heads of keys and values."""
    folder = tmp_path_factory.mktemp("transplanted")
    torch.set_num_threads(1)
    (folder / "words.txt").write_text("the quick brown fox jumps. " * 800)
    recipe = Recipe.parse(
        RECIPE | {"spec": SPEC, "data": {"text": [str(folder / "words.txt")], "tokenizer": "bytes"}, "steps": 60,
                  "optimizer": {"kind": "adamw", "learning_rate": 0.05},
                  "batch_size": 8, "sequence_length": 32, "dtype": "float32"}
    )  # fmt: skip
    loop.run(setup.start(folder / "donor", recipe, torch.device("cpu"), force=True), lambda event: None)
    shutil.copytree(folder / "donor", folder / "copy")
    donor = load(folder / "donor")
    save(
        transplant(donor, assign(donor.spec, ["layers[*].mixer.num_kv_heads=1", "layers[*].feedforward.d_ff=4"])),
        folder / "narrow",
        "donor",
    )
    return folder


def part(folder: Path, arms: dict[str, Any], **more: Any) -> dict[str, Any]:
    arms = {name: {**arm, "from": str(folder / arm["from"])} if "from" in arm else arm for name, arm in arms.items()}
    recipe = RECIPE | {"sequence_length": 32}
    usual = {"data": "words", "recipe": recipe, "decide": {"kind": "equivalence", "margin": "1%"},
             "modes": {"full": {"tokens": 256}}, "metric": {"name": "test.bits_per_byte"}}  # fmt: skip
    of = trained(arms=arms, **(usual | more))
    return {key: value for key, value in of.items() if key != "base"}


def done(folder: Path, store: Path, *parts: dict[str, Any]) -> tuple[Study, dict[str, Any]]:
    study = ran(folder, store, *parts)
    return study, study.outcome()


def ran(folder: Path, store: Path, *parts: dict[str, Any]) -> Study:
    study = Study(experiment(*parts), "full", folder, Store(store))
    study.run(engine("here", 1))
    return study


DONOR = {"donor": {"from": "donor", "as_is": True}}


def test_a_donor_is_evaluated_once_and_its_transplants_are_trained_by_seed(folder: Path, tmp_path: Path) -> None:
    arms = DONOR | {"narrow": {"from": "narrow"}}
    retained = [{"name": "test.recall", "length": 32}, {"name": "test.accuracy"}]
    study, outcome = done(folder, tmp_path, part(folder, arms, retained=retained))
    runs = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/request.json")]
    assert [bool(run["start"]["is_trained"]) for run in runs].count(False) == 1 and len(runs) == 3
    (one,) = outcome["parts"]
    assert len(set(one["comparisons"][0]["values"]["donor"])) == 1 < len(set(one["comparisons"][0]["values"]["narrow"]))
    assert one["arms"]["donor"]["tokens"] == 0 < one["arms"]["narrow"]["tokens"] == 256
    of_part = study.trained["width"]
    assert of_part.count()["tokens"] == 2 * 256
    untrained = time_of_run(of_part.arms["donor"], study.store)
    assert untrained.step == 0 < untrained.reading and untrained.parts(of_part.arms["donor"].recipe)["training"] == 0
    loss, recall, accuracy = one["retention"]
    assert loss["measure"] == "test loss" and recall["measure"] == "recall at 32 tokens"
    before, after = (one["comparisons"][0]["losses"][arm]["test"] for arm in ("donor", "narrow"))
    shares = [(loss["guess"] - b) / (loss["guess"] - a) for a, b in zip(before, after, strict=True)]
    mean, low, high = loss["arms"]["narrow"]["retained"]
    assert mean == pytest.approx(sum(shares) / 2) and low < mean < high
    saved = one["arms"]["donor"]["state_bytes"] - one["arms"]["narrow"]["state_bytes"]
    assert saved > 0 and loss["arms"]["narrow"]["lost_per_kib"][0] == pytest.approx((1 - mean) * 1024 / saved)
    assert recall["why_not"] == "the control is no better than a guess"  # so small a model looks nothing up
    assert recall["arms"]["narrow"]["retained"] is None and accuracy["arms"]["narrow"]["retained"] is not None
    assert "donor is evaluated without training." in one["sentences"]
    of_state = "state of one sequence of 32 tokens in float32"
    picture = pictures_of(one)["loss-by-state"]
    assert picture.count("<circle") == 2 and f"bytes of {of_state}" in picture
    (across, _), (end, level) = _polyline(picture, 0)  # the donor's loss, from the smallest state to the largest
    assert end - across > 600 and f'cy="{level:.1f}"' in picture
    for text in (markdown(outcome), summary_text(outcome)):
        assert "retained" in text and "of donor's test loss" in text and of_state in text


def _polyline(svg: str, index: int) -> list[tuple[float, float]]:
    points = re.findall(r'<polyline[^>]*points="([^"]*)"', svg)[index].split()
    return [(float(x), float(y)) for x, y in (point.split(",") for point in points)]


def test_no_effect_is_reported_where_there_is_none(folder: Path, tmp_path: Path) -> None:
    """A copy of the donor, and one whose weights differ by rounding; a real change is seen by the same rule."""
    rounded = load(folder / "donor")
    with torch.no_grad():
        for parameter in rounded.model.parameters():
            parameter.mul_(1 + 1e-7)
    rounded.save(tmp_path / "rounded")
    arms = DONOR | {
        name: {"from": str(place), "as_is": True}
        for name, place in (("copy", folder / "copy"), ("rounded", tmp_path / "rounded"), ("narrow", folder / "narrow"))
    }
    for kind in ("equivalence", "difference"):
        rule = {"kind": kind, "margin": "0.1%"} | ({"side": "worse"} if kind == "difference" else {})
        study = ran(folder, tmp_path / "store", part(folder, arms, seeds=6, decide=rule))
        trials, (comparison,) = study.trained["width"].comparisons()
        evidence = study.trained["width"].evidence(trials, comparison)
        decision = study.trained["width"].part.decide
        verdicts = {arm: decision.judge(one, decision.p_value(one)) for arm, one in evidence.items()}
        with case(kind):
            assert verdicts["copy"].verdict == verdicts["rounded"].verdict == NO_DIFFERENCE
            assert not any(evidence["copy"].differences) and not any(evidence["rounded"].differences)
            assert verdicts["narrow"].verdict != NO_DIFFERENCE and len(evidence["narrow"].differences) == 50
    shares = study.outcome()["parts"][0]["retention"][0]["arms"]
    assert shares["copy"]["retained"] == [1.0, None, None] and shares["copy"]["lost_per_kib"] is None
    assert shares["narrow"]["retained"][0] < 0.9999 and shares["narrow"]["retained"][1:] == [None, None]


def test_weights_that_change_are_another_run(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "donor", tmp_path / "changing")
    start = start_from(str(tmp_path / "changing"), True)
    assert start.sha256 == weights_hash(folder / "copy") != weights_hash(folder / "narrow")
    shutil.copy(folder / "narrow" / "model.safetensors", tmp_path / "changing" / "model.safetensors")
    with pytest.raises(DataError, match="has other weights than when the study was planned"):
        start.open(Recipe())
    parts = [tmp_path / f"model-0000{part}-of-00002.gguf" for part in (1, 2)]
    for file in parts:
        file.write_bytes(b"one")
    before = weights_hash(parts[0])
    parts[1].write_bytes(b"another")
    assert weights_hash(parts[0]) == weights_hash(parts[1]) != before


def test_wrong_starts_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    arms = DONOR | {"narrow": {"from": "narrow"}}
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for change, message in [
        ({"arms": DONOR | {"b": {"from": "nowhere"}}}, "is not a folder with trained weights"),
        ({"arms": DONOR | {"b": {"from": str(tmp_path / "adapter")}}}, "is an adapter, and its weights depend on its"),
        ({"arms": DONOR | {"b": {"spec": SPEC, "as_is": True}}}, "as_is: needs weights to evaluate, and true"),
        ({"arms": DONOR | {"b": {"from": "narrow", "as_is": 3}}}, "as_is: needs weights to evaluate, and true"),
        ({"arms": DONOR | {"b": {}}}, "base: is missing, and the arm 'b' has no model of its own"),
        ({"arms": {"a": {"spec": SPEC}, "b": {"from": "narrow"}}, "retained": [{"name": "test.recall"}]},
         "retained: needs a control with weights"),
        ({"retained": [{"name": "test.loss"}]}, "retained: test.loss is not an accuracy"),
        ({"data": {"text": "words", "tokenizer": "byte_bpe"}}, "data.tokenizer: is that of"),
        ({"modes": {"full": {"tokens": 256, "sizes": [SPEC]}}}, "modes: an arm that starts from weights has one"),
    ]:  # fmt: skip
        with case(message), pytest.raises(ArchetypeError) as error:
            Study(experiment(part(folder, change.pop("arms", arms), **change)), "full", folder, Store(tmp_path))
        assert message in str(error.value) and "\n" not in str(error.value), error.value


def test_recall_finds_what_a_model_that_looks_back_finds() -> None:
    """A model that copies what followed the last equal token is right everywhere, one that repeats a token nowhere."""
    tokenizer, length = train_tokenizer("bytes", [], None), 64
    rows, _ = texts(torch.arange(256).numpy(), length)
    assert rows.shape == (64, length) and all(len({*row.tolist()}) > 2 * NUM_PAIRS for row in rows)

    class Model:
        spec = type("Spec", (), {"context_length": length})
        device = torch.device("cpu")

        def __init__(self, looks_back: bool) -> None:
            self.looks_back = looks_back

        def __call__(self, tokens: torch.Tensor) -> Any:
            chosen = torch.zeros_like(tokens)
            for row, out in zip(tokens.tolist(), chosen, strict=True):
                for place, token in enumerate(row):
                    if self.looks_back and token in row[:place]:
                        out[place] = row[row.index(token) + 1]
            return type("Output", (), {"logits": torch.nn.functional.one_hot(chosen, 256).float()})

    model: Any = Model(looks_back=True)
    assert recalled(model, tokenizer, length) == (float(NUM_PAIRS),) * 64
    model.looks_back = False
    assert sum(recalled(model, tokenizer, length)) < 8
    with pytest.raises(DataError, match=r"metric\.length: a text of 31 tokens of 256 cannot be made for 8 pairs"):
        recalled(model, tokenizer, 31)


def test_arms_share_what_their_teacher_has_read(folder: Path, tmp_path: Path) -> None:
    """The second arm with the same seed and data, and the same batches, writes no new tokens of the teacher."""
    teacher = {"model": str(folder / "donor"), "top_k": 8}
    recipe = RECIPE | {"sequence_length": 32, "teacher": teacher}
    arms = DONOR | {"copy": {"from": "copy"}, "narrow": {"from": "donor", "layers[*].mixer.num_kv_heads": 1}}
    more: dict[str, Any] = {"seeds": 1, "modes": {"full": {"tokens": 512}}}
    study = ran(folder, tmp_path, part(folder, arms, recipe=recipe, **more))
    (cache,) = (tmp_path / "teachers").iterdir()
    assert len([*cache.glob("*.safetensors")]) == 4  # one for each step, and none for a second arm
    assert len({json.dumps(request.recipe.spec) for request in requests_of(study)}) == 2
    outcome = study.outcome()
    assert outcome["parts"][0]["taught"] == ["copy", "narrow"]
    for text in (markdown(outcome), summary_text(outcome)):
        assert "The training loss of copy and narrow is a distance from the teacher" in text
        assert text.count("with the teacher") == 2
    moved = shutil.copytree(folder / "donor", tmp_path / "elsewhere")
    other = recipe | {"teacher": teacher | {"model": str(moved)}}
    again = Study(experiment(part(folder, arms, recipe=other, **more)), "full", folder, Store(tmp_path))
    assert not again.needed()  # the same weights in another folder are the same teacher


def requests_of(study: Study) -> list[Any]:
    return [run.request for part in study.trained.values() for run in part.planned_runs() if run.arm.is_trained]


def test_two_folders_and_a_text_are_enough(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `compare --from-weights` chooses: the donor as it is, the donor trained, and the transplant trained."""
    monkeypatch.setattr(chosen, "time_of_run", lambda arm, store: RunTime(0.1 if arm.is_trained else 0.0))
    monkeypatch.setattr(chosen, "TOKENS_PER_STEP", 256)
    sources = [str(folder / name) for name in ("donor", "narrow")]
    one = chosen.choose_experiment(sources, "words", 2, 1, folder, Store(tmp_path), from_weights=True)
    (parsed,) = read_experiment(one.file).parts
    assert isinstance(parsed, TrainedPart)
    assert parsed.arms == {
        "donor": {"from": sources[0], "as_is": True}, "donor-trained": {"from": sources[0]},
        "narrow": {"from": sources[1]},
    }  # fmt: skip
    assert parsed.decide.kind == "equivalence" and [metric.length for metric in parsed.retained] == [32]
    steps = round(120 / (2 * 10 * 0.1))  # of ten runs of two arms
    tokens = parsed.modes.full.tokens
    assert tokens is not None and 0.9 * steps * 256 < tokens <= steps * 256
    study = TrainedStudy(parsed, "full", folder, Store(tmp_path))
    points = [request.recipe.optimizer.learning_rate for request in study.needed() if request.start.is_trained]
    assert len(points) == 2 * len(chosen.RATES) and "evaluated as it is" in one.reasons["control"]
    assert len({request.key for request in study.needed() if not request.start.is_trained}) == 1


def test_a_task_is_measured_by_its_accuracy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def evaluate_tasks(
        self: Any, tasks: list[str], num_fewshot: int | None = None, limit: int | None = None
    ) -> TaskScores:
        asked.append((self.spec.d_model, tasks, limit))
        return TaskScores({tasks[0]: {"acc_norm": 0.5, "acc": 0.25}}, {tasks[0]: 40})

    monkeypatch.setattr(CausalLM, "evaluate_tasks", evaluate_tasks)
    metric = Metric.parse({"name": "test.task", "better": "higher", "task": "piqa", "limit": 40})
    measured = measure(Run(folder / "donor"), metric, folder / "words.txt", torch.device("cpu"))
    assert (measured.value, measured.correct, measured.answers) == (0.25, (10.0,), (40.0,))
    assert asked == [(8, ["piqa"], 40)] and name_of(metric) == "accuracy of piqa"
