"""`translate --input --output`: a target for each source, once each however often the process is killed."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from archetype.api.language_model import LanguageModel
from archetype.families.original_transformer import transformer
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers import forked
from tests.helpers.weights import randomize
from tests.integration.conftest import Command

draw = random.Random(0)
SOURCES = [" ".join(draw.choices(["cat", "sat", "the", "on"], k=draw.randrange(5))) for _ in range(800)]
OPTIONS = ["--num-beams", "2", "--max-extra-tokens", "3"]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    spec = transformer(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=257, context_length=30)
    return LanguageModel(spec, randomize(build(spec)), train_tokenizer("byte_bpe", "the cat sat", 257))


@pytest.fixture(scope="module")
def model(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator") / "model"
    lm.save(folder)
    return folder


@pytest.mark.parametrize(("source", "target"), [("source.txt", "target.txt"), ("source.jsonl", "target.jsonl")])
def test_kills_lose_and_double_nothing(
    archetype: Command, lm: LanguageModel, model: Path, tmp_path: Path, source: str, target: str
) -> None:
    """SIGKILL after some records; a kill within a line is what the torn last line is."""
    file, output = tmp_path / source, tmp_path / target
    is_json = source.endswith("jsonl")
    lines = [json.dumps({"source": text, "id": f"no. {n}"}) for n, text in enumerate(SOURCES)] if is_json else SOURCES
    file.write_text("".join(f"{line}\n" for line in lines))
    records = output if is_json else tmp_path / f"{target}.partial.jsonl"
    command = ["translate", str(model), *OPTIONS, "--input", str(file), "--output", str(output)]
    for least in (1, 400):
        with (tmp_path / "messages").open("wb") as messages:
            process = forked.start(["archetype", *command], tmp_path, dict(os.environ), messages)
        while not records.is_file() or records.read_bytes().count(b"\n") < least:
            assert process.running(), (tmp_path / "messages").read_text()
            time.sleep(0.001)
        process.kill()
        process.wait()
        records.write_bytes(records.read_bytes()[: -draw.choice((1, 5))])
    done = archetype(*command, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["before"] >= 400 - 1 and summary["before"] + summary["finished"] == len(SOURCES)
    assert f"{output}: {summary['finished']:,} new targets, {summary['before']:,} from before; " in done.stderr
    expected = [" ".join(text.splitlines()) for text in lm.translate(SOURCES, num_beams=2, max_extra_tokens=3)]
    if is_json:
        written = [json.loads(line) for line in output.read_text().splitlines()]
        assert len(written) == len(SOURCES)
        targets = {record["id"]: record["target"] for record in written}
        assert [" ".join(targets[f"no. {n}"].splitlines()) for n in range(len(SOURCES))] == expected
    else:
        assert output.read_bytes() == "".join(f"{line}\n" for line in expected).encode()
        assert not records.exists()
    again = archetype(*command)
    assert again.returncode == 0 and "0 new targets, 800 from before" in again.stderr


def test_a_wrong_line_is_named_before_anything_runs(archetype: Command, model: Path, tmp_path: Path) -> None:
    for name, line, message in (
        ("a.jsonl", "[1]", "is not a JSON object; write one JSON object, such as"),
        ("a.jsonl", '{"source": 1}', "source: 1 is not a string; write it as a JSON string"),
        ("a.jsonl", '{"source": "a", "num_beams": 2}', "num_beams: is not a known key; use source, and optionally id"),
        ("a.jsonl", '{"source": "a", "id": 1}', "id: 1 is also the id of line 1; use a unique id on each line"),
        ("a.txt", "z" * 40, "has 41 tokens, more than the model's context of 30; split it into sentences"),
    ):
        file, output = tmp_path / name, tmp_path / "b.txt"
        file.write_text(f'{{"source": "a"}}\n\n{line}\n' if name == "a.jsonl" else f"a\n\n{line}\n")
        done = archetype("translate", model, "--input", file, "--output", output)
        assert done.returncode == 2 and not output.exists()
        assert done.stderr.startswith(f"archetype: {file}: line 3: {message}"), done.stderr
    output.write_text("other\n")
    for arguments, message in (
        (["--input", file], "--input: has no effect without --output; add --output, or remove --input"),
        (
            ["a text", "--input", file, "--output", output],
            "TEXT: cannot be combined with --input; use exactly one of them",
        ),
        (
            ["--input", file, "--output", output],
            f"{output}: does not contain translations of this input; choose another",
        ),
    ):
        done = archetype("translate", model, *arguments)
        assert done.returncode == 2 and done.stderr.startswith(f"archetype: {message}"), done.stderr
    assert output.read_text() == "other\n"
