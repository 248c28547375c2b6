"""Classes and values of texts: a new head on a trained model, its names, its report, and refusals in words."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.api import loading
from archetype.api.pretrained import open_pretrained
from archetype.apps.cli.encoder import classify
from archetype.apps.cli.evaluate import evaluate
from archetype.errors import ArchetypeError
from archetype.spec import LoRA
from archetype.training.examples import LabelledText
from archetype.training.loop import run
from archetype.training.objectives import Regression
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Texts whose words tell their class: as CSV, as JSON lines, and with values."""
    folder, drawn = tmp_path_factory.mktemp("labelled"), random.Random(0)
    words = {"good": ["sun", "sky", "sea"], "bad": ["mud", "fog", "tax"]}
    rows = [(kind, " ".join(drawn.choices(words[kind], k=4))) for kind in ("good", "bad") * 60]
    (folder / "classes.csv").write_text("text,label\n" + "".join(f'"{text}",{kind}\n' for kind, text in rows))
    lines = [json.dumps({"text": text, "label": 2 * len(kind) - 6, "more": 1}) for kind, text in rows]
    (folder / "values.jsonl").write_text("\n".join(lines))
    return {"classes": folder / "classes.csv", "values": folder / "values.jsonl"}


def recipe_of(file: Path, spec: str, **fields: Any) -> Recipe:
    data = LabelledText(examples=(str(file),), tokenizer="bytes", validation_fraction=0.2)
    return Recipe(
        spec=spec, data=data, batch_size=16, steps=30, evaluate_every=12, checkpoint_every=10,
        optimizer=AdamW(learning_rate=1e-2), dtype="float32",
    ).replace(**fields)  # fmt: skip


@pytest.mark.parametrize("spec", ["bert-tiny", "llama-tiny"])
def test_a_new_head_learns_classes_by_name(
    spec: str, labelled: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_of(labelled["classes"], spec)
    steps(start(tmp_path / "base", recipe.replace(steps=1), CPU))  # a model with some weights and its tokenizer
    whole = start(tmp_path / "run", recipe, CPU, pretrained=open_pretrained(tmp_path / "base"))
    assert run(whole, lambda event: None) is None
    lm = loading.load(tmp_path / "run")
    assert lm.labels == ("bad", "good") and lm.spec.head.kind == "classification"
    assert lm.classify(["sky sea sun sea", "fog mud fog tax"]).argmax(1).tolist() == [1, 0]
    evaluate(model=tmp_path / "run", data=labelled["classes"], as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"] == 1.0 and report["classes"]["good"]["support"] == 60
    first = steps(start(tmp_path / "parts", recipe, CPU, pretrained=open_pretrained(tmp_path / "base")), 13)
    second = resume(tmp_path / "parts", CPU)
    assert second.step == 13
    expected = [(line["step"], line["loss"]) for line in _metrics(tmp_path / "run") if "loss" in line]
    assert [measured(step)[:2] for step in first + steps(second)] == expected
    assert_equal_states(second, whole)


def test_other_classes_get_a_new_head_that_learns_beside_an_adapter(labelled: dict[str, Path], tmp_path: Path) -> None:
    recipe = recipe_of(labelled["classes"], "bert-tiny", steps=2)
    steps(start(tmp_path / "base", recipe, CPU))
    pretrained = open_pretrained(tmp_path / "base")
    same = start(tmp_path / "same", recipe, CPU, pretrained=pretrained)
    assert torch.equal(same.model.classifier.weight, pretrained.model.classifier.weight)  # type: ignore[union-attr]
    other = tmp_path / "other.csv"
    other.write_text(labelled["classes"].read_text().replace("good\n", "fine\n"))
    tuned = recipe_of(other, "bert-tiny", adapter=LoRA(rank=2))
    state = start(tmp_path / "tuned", tuned, CPU, pretrained=pretrained)
    assert not torch.equal(state.model.classifier.weight, pretrained.model.classifier.weight)  # type: ignore[union-attr]
    assert state.recipe.trainable == ("classifier",) and "classifier, which are random" in state.notes[0]
    trained = {name.rpartition(".")[2] for name, p in state.model.named_parameters() if p.requires_grad}
    assert trained == {"lora_A", "lora_B", "weight", "bias"}
    assert loading.load(tmp_path / "tuned").labels == ("bad", "fine")


def test_a_value_is_estimated(labelled: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_of(labelled["values"], "bert-tiny", objective=Regression())
    run(start(tmp_path / "run", recipe, CPU), lambda event: None)
    last = _metrics(tmp_path / "run")[-1]
    assert last["validation_accuracy"] is None and last["validation_loss"] < 0.5  # values of 0 and 2
    classify(tmp_path / "run", ["sky sea sun sea", "fog mud fog tax"], as_json=True)
    values = [row["value"] for row in json.loads(capsys.readouterr().out)["texts"]]
    assert values[0] > 1.2 and values[1] < 0.8
    evaluate(model=tmp_path / "run", data=labelled["values"], as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["mean_squared_error"] < 0.5 and min(report["pearson"], report["spearman"]) > 0.7
    with pytest.raises(ArchetypeError, match="the label 'good' is not a number; use numbers: the model is a"):
        evaluate(model=tmp_path / "run", data=labelled["classes"])


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("text,label\n", {}, "contains no records; write one record with text, label per line"),
        ("text,label\na,\nb,c\n", {}, r"line 2: has no label; add a label: \{\"text\": ..., \"label\": ...\}"),
        ("text,label\na,b\nc,b\n", {}, "has one class, 'b'; use texts of at least two classes"),
        ("text,label\na,b\n", {}, "has only one record"),
        ("text,label\na,b\nc,d\n", {"objective": Regression()}, "the label '.' is not a number; use objective text_c"),
        ("text,label\na,b\nc,d\n", {"objective": {"kind": "text_class", "labels": ["b"]}}, "lacks the class 'd'"),
        ("text,label\na,b\nc,d\n", {"spec": "t5-tiny"}, "no objective suits a model of kind encoder_decoder"),
    ],
)
def test_what_is_wrong_is_said(text: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(ArchetypeError, match=message):
        start(tmp_path / "run", recipe_of(tmp_path / "data.csv", "bert-tiny").replace(**fields), CPU)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
