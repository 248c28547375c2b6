"""Classifiers trained here from an encoder of every family that is read: transformers reads their export alike."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype import families, spec
from archetype.api.pretrained import open_pretrained
from archetype.tokenizers import train_tokenizer
from archetype.training.examples import LabelledText, LabelledTokens
from archetype.training.loop import run
from archetype.training.recipe import Recipe
from archetype.training.setup import start
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import SPECIAL, TASKS, write_small

CPU = torch.device("cpu")
ENCODERS = [
    kind for kind, family in families.published().items()
    if kind in TASKS["masked"].types and getattr(family.format.keys, "kind", None) is spec.Encoder
]  # fmt: skip
CASES = [(kind, task) for kind in ENCODERS for task in ("texts", "tokens") if kind in TASKS[task].types]
LABELLED: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "texts": ([{"text": f"{word} {n}", "label": word} for n in range(8) for word in ("yes", "no", "so")], LabelledText),
    "tokens": ([{"tokens": ["is", "it", str(n)], "labels": ["O", "A", "B"]} for n in range(16)], LabelledTokens),
}


@pytest.mark.parametrize(("kind", "task"), every(14, (pytest.param(*case) for case in CASES)))
def test_transformers_reads_it_with_equal_logits(
    kind: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SPECIAL, kind, SPECIAL.get(kind, {}) | {"vocab_size": 300})
    write_small(kind, tmp_path / "theirs", TASKS["masked"])
    lm = archetype.load(tmp_path / "theirs")
    replace(lm, tokenizer=train_tokenizer("bytes", "", None)).save(tmp_path / "encoder")
    records, data = LABELLED[task]
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, records)))
    pretrained = open_pretrained(tmp_path / "encoder")
    examples = data(examples=(str(tmp_path / "examples.jsonl"),), tokenizer=str(tmp_path / "encoder"))
    recipe = Recipe(spec=pretrained.model.spec.dump(), data=examples, batch_size=8, steps=2, dtype="float32")
    run(start(tmp_path / "run", recipe, CPU, pretrained=pretrained), lambda event: None)
    trained = archetype.load(tmp_path / "run")
    with torch.no_grad():
        randomize(trained.model)
        archetype.export(trained, tmp_path / "written")
        assert json.loads((tmp_path / "written/config.json").read_text())["model_type"] == kind
        theirs = TASKS[task].auto.from_pretrained(tmp_path / "written").eval()
        assert theirs.config.num_labels == 3 and set(theirs.config.label2id) == set(trained.labels)
        answers = TASKS[task].theirs(theirs)
        assert distance(TASKS[task].ours(trained.model), answers) < EXACT
        trained.model.classifier.weight[0].zero_()
        assert distance(TASKS[task].ours(trained.model), answers) > WRONG
