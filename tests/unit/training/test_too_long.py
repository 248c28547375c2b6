"""Examples that do not fit into a row are counted: where a run is told of, in its provenance and in its report."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.training.datasets import Data, PairData
from archetype.training.examples import Conversations, LabelledText, LabelledTokens, Preferences, TextPairs
from archetype.training.provenance import read_provenance
from archetype.training.recipe import Recipe
from archetype.training.report_page import write_report
from archetype.training.setup import start

LONGEST, COUNT = 24, 40
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


def words(is_long: bool) -> str:
    return " ".join("ab"[number % 2] for number in range(40 if is_long else 5))


def talk(is_long: bool) -> dict[str, Any]:
    """A question, which takes all the row where it is long, and its answer."""
    return {"messages": [{"role": "user", "content": words(is_long)}, {"role": "assistant", "content": "a"}]}


# Of each kind of data: a record, its class, the model, and what is said of `num` long ones among them.
KINDS: dict[str, tuple[Any, type[Data], str, str]] = {
    "chat": (
        talk, Conversations, "llama-tiny",
        "{num} truncated to 24 tokens, {num} left out (no answer within the limit)",
    ),
    "preferences": (
        lambda long: {"prompt": "a", "chosen": words(long), "rejected": "b"}, Preferences, "llama-tiny",
        "{num} left out (longer than 24 tokens)",
    ),
    "labelled text": (
        lambda long: {"text": words(long), "label": random.choice("xy")}, LabelledText, "bert-tiny",
        "{num} truncated to 24 tokens",
    ),
    "labelled tokens": (
        lambda long: {"tokens": words(long).split(), "labels": list(words(long).split())}, LabelledTokens, "bert-tiny",
        "{num} truncated to 24 tokens",
    ),
    "text pairs": (
        lambda long: {"anchor": words(long), "positive": "b"}, TextPairs, "bert-tiny",
        "{num} truncated to 24 tokens",
    ),
}  # fmt: skip


def said_of(data: Data, spec: str, folder: Path) -> str:
    recipe = Recipe(spec=spec, data=data, batch_size=4, steps=1, sequence_length=LONGEST, dtype="float32")
    state = start(folder / "run", recipe, torch.device("cpu"))
    provenance = read_provenance(state.run)
    assert provenance and provenance.examples == state.objective.description
    assert f"The training data are {provenance.examples}." in write_report(state.run).read_text()
    return provenance.examples


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_long", [0, 7])
def test_records_that_are_too_long_are_counted(kind: str, num_long: int, tmp_path: Path) -> None:
    record, data, spec, sentence = KINDS[kind]
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    lines = [json.dumps(record(number % 5 == 0 and number < 5 * num_long)) for number in range(COUNT)]
    (file := tmp_path / "examples.jsonl").write_text("\n".join(lines))
    fields: dict[str, Any] = {
        "kind": data.model_fields["kind"].default, "examples": [str(file)], "validation_fraction": 0.3,
        "tokenizer": "bytes" if spec == "llama-tiny" else "words",
    }  # fmt: skip
    if "template" in data.model_fields:
        fields["template"] = str(tmp_path / "template.jinja")
    said = said_of(data.parse(fields), spec, tmp_path)
    _, comma, rest = said.partition(", ")
    assert rest == (sentence.format(num=num_long) if num_long else "") and bool(comma) == bool(num_long)


@pytest.mark.parametrize(("num_long", "num_empty"), [(0, 0), (3, 0), (0, 2), (3, 2)])
def test_pairs_that_are_left_out_are_counted(num_long: int, num_empty: int, tmp_path: Path) -> None:
    sources = [words(number < num_long) for number in range(COUNT)]
    targets = ["" if number >= COUNT - num_empty else "b" for number in range(COUNT)]
    for name, lines in (("source", sources), ("target", targets)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = ((str(tmp_path / name),) for name in ("source", "target"))
    said = said_of(PairData(**dict(zip(("source", "target"), files, strict=True))), "transformer-tiny", tmp_path)
    _, _, rest = said.partition(" pairs of texts")
    too_long = f", {num_long} left out (longer than 24 tokens)" if num_long else ""
    assert rest == too_long + (f", {num_empty} left out (one side is empty)" if num_empty else "")
