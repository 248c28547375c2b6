"""Evaluation counts the examples that it truncates or leaves out: in the printed report and in --json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import app
from archetype.families.bert import bert
from archetype.families.original_transformer import transformer
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.weights import randomize

LONGEST, COUNT = 12, 8
LONG = "a text longer than that"
Row = dict[str, Any]


def words(is_long: bool) -> list[str]:
    return (LONG if is_long else "a b").split()


# Of each kind of data: the head, the option, the record of one example, and its texts that can be truncated.
KINDS: dict[str, tuple[Any, str, Callable[[bool], Row], int]] = {
    "classes": (
        spec.ClassificationHead(num_classes=2), "--data", lambda long: {"text": LONG if long else "b", "label": 1}, 1,
    ),
    "values": (
        spec.ClassificationHead(num_classes=1), "--data", lambda long: {"text": LONG if long else "b", "label": 0.5}, 1,
    ),
    "words": (
        spec.TokenClassificationHead(num_classes=2), "--data",
        lambda long: {"tokens": words(long), "labels": [0] * len(words(long))}, 1,
    ),
    "retrieval": (
        spec.SentenceEmbeddingHead(), "--retrieval",
        lambda long: {"anchor": f"{LONG if long else ''}b", "positive": f"{LONG if long else ''}c"}, 2,
    ),
    "scores": (
        spec.SentenceEmbeddingHead(), "--correlation",
        lambda long: {"text1": LONG if long else "b", "text2": f"c{LONG if long else ''}", "score": len(words(long))},
        2,
    ),
}  # fmt: skip


def evaluated(model: Path, *arguments: Any) -> tuple[str, dict[str, int]]:
    """The printed report, and the counts of examples that --json has."""
    call = ["evaluate", *map(str, (model, *arguments))]
    printed, record = (CliRunner().invoke(app, [*call, *more], catch_exceptions=False) for more in ((), ("--json",)))
    assert printed.exit_code == record.exit_code == 0
    return printed.stdout, json.loads(record.stdout)["examples"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_long", [0, 1])
def test_texts_that_are_too_long_are_counted(kind: str, num_long: int, tmp_path: Path) -> None:
    head, option, record, num_texts = KINDS[kind]
    sizes: Any = {"num_layers": 1, "d_model": 8, "num_heads": 2, "vocab_size": 260}
    encoder = bert(**sizes, context_length=LONGEST, head=head)
    LanguageModel(encoder, randomize(build(encoder)), train_tokenizer("bytes", "", None)).save(tmp_path / "model")
    lines = [json.dumps(record(number < num_long)) for number in range(COUNT)]
    (file := tmp_path / "examples.jsonl").write_text("\n".join(lines))
    printed, counts = evaluated(tmp_path / "model", option, file)
    num_cut = num_texts * num_long
    num_words = len(words(True)) - 3 if kind == "words" and num_long else 0  # "a", "text" and "longer" have a token
    assert (counts["max_tokens"], counts["num_cut"], counts["num_words"]) == (LONGEST, num_cut, num_words)
    line = f"texts: {num_cut} truncated to {LONGEST} tokens"
    left_out = f", {num_words} words left out (no token within the first {LONGEST} tokens)" if num_words else ""
    assert printed.endswith(f"\n{line}{left_out}\n") if num_cut else "texts: " not in printed


@pytest.mark.parametrize("num_empty", [0, 2])
def test_pairs_with_an_empty_side_are_counted(num_empty: int, tmp_path: Path) -> None:
    described = transformer(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=280, context_length=30)
    tokenizer = train_tokenizer("byte_bpe", "the cat sat", 280)
    LanguageModel(described, randomize(build(described)), tokenizer).save(tmp_path / "model")
    for side, empty in (("source", "\n"), ("target", "cat\n")):
        (tmp_path / side).write_text("the\n" * 3 + empty * num_empty)
    files = (f"--{side}={tmp_path / side}" for side in ("source", "target"))
    printed, counts = evaluated(tmp_path / "model", *files, "--num-beams", 1)
    assert counts["num_empty"] == num_empty
    assert (f"\npairs: {num_empty} left out (one side is empty)\n" in printed) == bool(num_empty)
