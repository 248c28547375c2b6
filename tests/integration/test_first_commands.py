"""First commands of a newcomer: every kind of model with every kind of data, and as few words as possible.

Each trains two steps, or is refused in one line whose remedy, followed to the letter, leads to a run.
"""

import csv
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from archetype.io.yaml import read_mapping
from tests.helpers.examples import every
from tests.integration.conftest import Command

COUNT = 40
WORDS = ("the", "old", "captain", "walked", "along", "a", "quiet", "river", "and", "nobody", "knew", "why", "he")
MODELS = (
    None, "llama-tiny", "bigram-tiny", "megabyte-tiny", "mamba-tiny", "bert-tiny", "t5-tiny", "seq2seq-attention-tiny",
    "transformer-tiny", "vit-tiny",
)  # fmt: skip
# The words of a command, and the kind of data that it trains on in the end.
DATA = {
    "text.txt": "corpus", "notes": "corpus", "docs.jsonl": "documents", "docs.json": "documents",
    "reviews.csv": "documents", "reviews.tsv": "documents", "reviews.parquet": "documents", "folder": "documents",
    "chat.jsonl": "chat", "sharegpt.json": "chat", "alpaca.json": "chat", "preferences.jsonl": "preferences",
    "words.jsonl": "labelled_tokens", "pictures": "images", "grey.npz": "images", "programs": "corpus",
    "--chat chat.jsonl": "chat", "--chat sharegpt.json": "chat", "--chat alpaca.csv": "chat",
    "--chat questions.csv --column instruction=question --column output=answer": "chat",
    "--preferences preferences.jsonl": "preferences", "--labelled labelled.csv": "labelled_text",
    "--labelled reviews.csv": "labelled_text", "--labelled reviews.parquet": "labelled_text",
    "--labelled-tokens words.jsonl": "labelled_tokens", "--labelled-tokens tagged.json": "labelled_tokens",
    "--pairs pairs.tsv": "text_pairs", "--pairs questions.csv": "text_pairs",
    "--scored-pairs scored.csv": "scored_pairs",
    "--source source.txt --target target.txt": "pairs", "--source pairs.csv": "pairs",
    "--source questions.csv": "pairs", "--images pictures": "images", "--images grey.npz": "images",
    "--images colour.npz": "images",
}  # fmt: skip
CASES = [pytest.param(model, words, id=f"{model}-{words}") for words in DATA for model in MODELS]
OPTION = re.compile(r"(--[a-z-]+) ('[^']+'|[^\s;,]+)")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of every kind, each in the form in which people have it."""
    import pyarrow
    from pyarrow import parquet

    folder, draw, random_numbers = tmp_path_factory.mktemp("material"), random.Random(0), np.random.default_rng(0)

    def text(count: int = 8) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(count)).capitalize()

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        encoding = "utf-8-sig" if name.startswith("reviews") else "utf-8"
        with (folder / name).open("w", newline="", encoding=encoding) as file:
            if name.endswith((".csv", ".tsv")):
                writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if name.endswith(".tsv") else ",")
                writer.writeheader()
                writer.writerows(rows)
            elif name.endswith(".json"):
                json.dump(rows, file)
            else:
                file.writelines(json.dumps(row) + "\n" for row in rows)

    numbers = range(COUNT)
    texts = [f'{text(40)}.\nShe said "{text(9)}", then left.' for _ in numbers]
    (folder / "text.txt").write_text("\n\n".join(texts))
    for name in ("notes/a.md", "notes/b/c.txt", "programs/a.py", "folder/c.txt"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("\n\n".join(texts))
    write("docs.jsonl", [{"text": one} for one in texts])
    write("docs.json", [{"id": number, "body": one} for number, one in enumerate(texts)])
    reviews = [{"id": number, "review": one, "stars": draw.choice("15")} for number, one in enumerate(texts)]
    for name in ("reviews.csv", "reviews.tsv", "folder/reviews.csv"):
        write(name, reviews)
    parquet.write_table(pyarrow.Table.from_pylist(reviews), folder / "reviews.parquet")
    (folder / "folder" / "c.txt").rename(folder / "folder" / "c.log")
    write("labelled.csv", [{"text": text(), "label": draw.choice("ab")} for _ in numbers])
    turns = [(text(), text()) for _ in numbers]
    for name, key, roles, field, content in (
        ("chat.jsonl", "messages", ("user", "assistant"), "role", "content"),
        ("sharegpt.json", "conversations", ("human", "gpt"), "from", "value"),
    ):
        said = [[{field: role, content: one} for role, one in zip(roles, pair, strict=True)] for pair in turns]
        write(name, [{key: messages} for messages in said])
    for name in ("alpaca.json", "alpaca.csv"):
        write(name, [{"instruction": a, "input": "", "output": b} for a, b in turns])
    write("questions.csv", [{"question": a, "answer": b} for a, b in turns])
    write("pairs.tsv", [{"anchor": a, "positive": b} for a, b in turns])
    write("pairs.csv", [{"source": a, "target": b} for a, b in turns])
    write("preferences.jsonl", [{"prompt": a, "chosen": b, "rejected": text()} for a, b in turns])
    write("scored.csv", [{"sentence1": a, "sentence2": b, "score": draw.random()} for a, b in turns])
    tags = [{"tokens": a.split(), "labels": [draw.choice("AO") for _ in a.split()]} for a, _ in turns]
    write("words.jsonl", tags)
    write("tagged.json", [{"tokens": one["tokens"], "ner_tags": one["labels"]} for one in tags])
    for name, side in (("source.txt", 0), ("target.txt", 1)):
        (folder / name).write_text("\n".join(pair[side] for pair in turns))
    for number in range(12):
        (picture := folder / "pictures" / ("cat" if number % 2 else "dog") / f"{number}.png").parent.mkdir(
            parents=True, exist_ok=True
        )
        Image.fromarray(random_numbers.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(picture)
    np.savez(folder / "grey.npz", images=random_numbers.random((COUNT, 8, 8)), labels=np.arange(COUNT) % 10)
    colours = random_numbers.integers(0, 255, (COUNT, 3, 12, 12), dtype=np.uint8)
    np.savez(folder / "colour.npz", images=colours, labels=np.arange(COUNT) % 13)
    return folder


@pytest.mark.parametrize(("model", "words"), every(74, CASES))
def test_a_first_command_trains_or_says_how(
    model: str | None, words: str, archetype: Command, material: Path, tmp_path: Path
) -> None:
    command = [str(material / word) if (material / word).exists() else word for word in words.split()]
    command += [] if model is None else ["--spec", model]
    told: list[str] = []
    run = tmp_path / "run"
    while (done := archetype("train", *command, "--steps", "2", "--to", run)).returncode not in (0, 1):
        lines = done.stderr.splitlines()
        told.append(lines[-1] if lines else "")
        assert done.returncode == 2 and told[-1].startswith("archetype: "), done.stderr
        assert len(told) < 5, told
        command = followed(command, told[-1].partition("; ")[2], material)
    assert (run / "model.safetensors").is_file(), done.stderr
    assert read_mapping(run / "recipe.yaml").get("data", {}).get("kind", "corpus") == DATA[words], told
    assert "Traceback" not in done.stderr
    if model is None and words.startswith("--"):
        assert len(told) <= 1, told


def followed(command: list[str], remedy: str, material: Path) -> list[str]:
    """The command as a remedy has it."""
    options = OPTION.findall(remedy)
    if not options:
        pattern = re.search(r"a pattern such as '(.+)'", remedy)
        assert pattern is not None, remedy
        return [pattern[1] if Path(word).is_dir() else word for word in command]
    for name, value in options:
        value = shlex.split(value)[0]
        if Path(value).exists() and value in command:  # the same file by another option
            command = [word for word in command if word != value]
        if name in command and name not in ("--set", "--column"):
            command[command.index(name) + 1] = value
        else:
            command = [*command, name, value]
    return command
