"""Classes of tokens: a new head learns them from words with labels, and the verb names the class of each token."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.api import loading
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.encoder import classify
from archetype.data import labelled_words
from archetype.errors import ArchetypeError
from archetype.families import preset
from archetype.generate import TokenClass
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from archetype.training.examples import LabelledTokens
from archetype.training.loop import run
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.setup import start

CPU = torch.device("cpu")
WRONG = {
    '{"tokens": ["the"], "labels": ["verb"]}': "'verb' is not one of the model's classes, name, word",
    '{"tokens": ["the"], "labels": []}': "line 1: has 1 tokens and 0 labels",
    '{"tokens": "the", "labels": ["word"]}': "line 1: tokens: 'the' is not a list of words",
}
NAMES, WORDS = ("Ada", "Bob"), ("the", "sea")


def recipe_of(file: Path, spec: str, **fields: Any) -> Recipe:
    data = LabelledTokens(examples=(str(file),), tokenizer="words", validation_fraction=0.2)
    return Recipe(
        spec=spec, data=data, batch_size=16, steps=25, evaluate_every=25, checkpoint_every=25, dtype="float32",
        optimizer=AdamW(learning_rate=1e-2),
    ).replace(**fields)  # fmt: skip


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawn, file = random.Random(0), tmp_path_factory.mktemp("labelled") / "names.jsonl"
    rows = [drawn.choices(NAMES + WORDS, k=drawn.randint(2, 6)) for _ in range(80)]
    labels = [["name" if word in NAMES else "word" for word in row] for row in rows]
    records = [{"tokens": row, "labels": own} for row, own in zip(rows, labels, strict=True)]
    file.write_text("\n".join(map(json.dumps, records)))
    return file


@pytest.mark.parametrize("spec", ["bert-tiny", "llama-tiny"])
def test_a_new_head_learns_the_class_of_each_word(
    spec: str, labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(start(tmp_path / "run", recipe_of(labelled, spec), CPU), lambda event: None) is None
    lm = loading.load(tmp_path / "run")
    assert lm.labels == ("name", "word") and lm.spec.head.kind == "token_classification"
    texts = ["the sea Bob", "Ada"]
    answers = lm.classify_tokens(texts)
    assert [[(one.token, one.label) for one in classes] for classes in answers] == [
        [("the", "word"), ("sea", "word"), ("Bob", "name")], [("Ada", "name")]
    ]  # fmt: skip
    assert all(0.5 < one.probability <= 1 for classes in answers for one in classes)
    report = lm.evaluate(labelled)
    counts = Counter(label for line in labelled.read_text().splitlines() for label in json.loads(line)["labels"])
    assert {name: score.support for name, score in report.classes.items()} == counts
    assert report.accuracy == 1 and report.loss is not None and report.loss < 0.7
    (tmp_path / "other.jsonl").write_text('{"tokens": ["the", "Bob"], "labels": ["name", "name"]}')
    report = lm.evaluate(tmp_path / "other.jsonl")
    assert report.accuracy == 0.5 and report.classes["name"].f1 == 2 / 3
    for line, message in WRONG.items():
        (tmp_path / "other.jsonl").write_text(line)
        with pytest.raises(ArchetypeError, match=message):
            lm.evaluate(tmp_path / "other.jsonl")
    classify(tmp_path / "run", texts, as_json=True)
    told = json.loads(capsys.readouterr().out)["texts"]
    assert [row["text"] for row in told] == texts
    assert [[TokenClass(**one) for one in row["tokens"]] for row in told] == answers
    classify(tmp_path / "run", texts, device="cpu")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["the", "word"], ["sea", "word"], ["Bob", "name"], [],
        ["Ada", "name"]]  # fmt: skip


def test_the_class_of_a_word_stands_at_its_first_token_between_special_ones() -> None:
    """With bytes as tokens a word has several, and a text is cut where the model's context ends."""

    class Surrounding(type(train_tokenizer("bytes", "", None))):  # type: ignore[misc]
        def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
            return [0, *ids, 1]

    tokenizer = Surrounding()
    record = {"tokens": ["Ada", "sat"], "labels": ["name", "word"]}
    ((tokens, classes),), num_cut = labelled_words.labelled_rows([record], tokenizer, 7, {"name": 0, "word": 1})
    assert num_cut == 1
    assert tokens.tolist() == tokenizer.add_special_tokens([*b"Ada s"])
    expected = {ord("A"): 0, ord(" "): 1}
    ignored = labelled_words.NO_CLASS
    assert classes.tolist() == [expected.get(token, ignored) for token in tokens.tolist()]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"tokens": ["a", "b"], "labels": ["x"]}, "file.jsonl: line 1: has 2 tokens and 1 labels"),
        ({"tokens": ["a", ""], "labels": ["x", "y"]}, "line 1: tokens has no words, or contains an empty word"),
        ({"tokens": [], "labels": []}, "line 1: tokens has no words, or contains an empty word"),
        ({"tokens": "a b", "labels": ["x"]}, "line 1: tokens: 'a b' is not a list of words"),
        ({"tokens": ["a", 1], "labels": ["x", "y"]}, r"line 1: tokens: \['a', 1\] is not a list of words"),
    ],
)
def test_words_and_labels_that_do_not_match_are_refused(record: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_text(json.dumps(record))
    with pytest.raises(ArchetypeError, match=message):
        start(tmp_path / "run", recipe_of(tmp_path / "file.jsonl", "bert-tiny"), CPU)


def test_a_head_of_another_kind_names_no_class_of_tokens() -> None:
    model_spec = preset("bert-tiny")
    lm = LanguageModel(model_spec, build(model_spec), train_tokenizer("bytes", "", None))
    with pytest.raises(ArchetypeError, match="head: a head of kind masked_language_model does not classify tokens"):
        lm.classify_tokens("a")
