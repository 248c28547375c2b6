"""`generate --input --output`: a line for each prompt, once each however often the process is killed."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import archetype as package
from tests.helpers import forked
from tests.integration.conftest import Command

PROMPTS = [
    {"prompt": "Return " + "abc " * (n % 5), "max_new_tokens": 4 + n % 9}
    | ({"id": f"own {n}"} if n % 2 else {})
    | ({"temperature": 0.9, "seed": n, "stop": ["e"]} if n % 3 else {})
    for n in range(40)
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return file


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_prompt_has_its_text(archetype: Command, run_directory: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "texts.jsonl"
    done = archetype("generate", run_directory, "--input", prompts, "--output", output, "--temperature", "0", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["finished"], summary["before"], summary["failed"]) == (40, 0, 0) and summary["tokens"] > 100
    assert f"{output}: 40 new texts, 0 from before; {summary['tokens']:,} tokens, " in done.stderr
    lm, records = package.load(run_directory), {record["id"]: record for record in lines(output)}
    assert len(records) == 40 == len(lines(output))
    for number, prompt in enumerate(PROMPTS, start=1):
        record = records[prompt.get("id", number)]
        sampling = {"temperature": 0.0} | {key: value for key, value in prompt.items() if key not in ("prompt", "id")}
        assert record["text"] == lm.generate(str(prompt["prompt"]), **sampling)
        assert record["finish_reason"] in ("stop", "length")
        assert record["prompt_tokens"] == len(str(prompt["prompt"])) and record["completion_tokens"] >= 1
    assert summary["tokens"] == sum(record["completion_tokens"] for record in records.values())  # cut text included
    again = archetype("generate", run_directory, "--input", prompts, "--output", output, "--temperature", "0")
    assert again.returncode == 0 and "0 new texts, 40 from before; 0 tokens" in again.stderr


def test_kills_lose_and_double_nothing(archetype: Command, run_directory: Path, prompts: Path, tmp_path: Path) -> None:
    """SIGKILL after some lines; a kill within a line is what the torn last line is."""
    output, expected, draw = tmp_path / "texts.jsonl", tmp_path / "expected.jsonl", random.Random(0)
    command = ["generate", str(run_directory), "--input", str(prompts), "--slots", "3", "--lookup", "--output"]
    assert archetype(*command, expected).returncode == 0
    for least in (1, 9, 18, 27):
        with (tmp_path / "messages").open("wb") as messages:
            process = forked.start(["archetype", *command, str(output)], tmp_path, dict(os.environ), messages)
        while not output.is_file() or output.read_bytes().count(b"\n") < least:
            assert process.running(), (tmp_path / "messages").read_text()
            time.sleep(0.002)
        process.kill()
        process.wait()
        data = output.read_bytes()
        output.write_bytes(data[: len(data) - draw.choice((0, 1, 5))])
    finished = archetype(*command, output)
    assert finished.returncode == 0, finished.stderr
    assert sorted(output.read_text().splitlines()) == sorted(expected.read_text().splitlines())
    assert not [file for file in tmp_path.iterdir() if ".partial" in file.name]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes; write one JSON object, such as"),
        ("[1]", "is not a JSON object; write one JSON object, such as"),
        ('{"id": 3}', "has neither a prompt nor messages; use exactly one of them"),
        ('{"prompt": "a", "messages": []}', "has both a prompt and messages; use exactly one of them"),
        ('{"prompt": 7}', "prompt: 7 is not a string; write it as a JSON string"),
        ('{"prompt": "a", "id": 1.5}', "id: 1.5 is neither a number nor a string; use a number or a string"),
        ('{"prompt": "a", "id": 1}', "id: 1 is also the id of line 1; use a unique id on each line"),
        ('{"messages": [{"role": "user"}]}', "messages: are not objects with a role and a content; write"),
        ('{"prompt": "a", "top_k": 0}', "top_k: 0 is too small; use at least 1"),
        ('{"prompt": "a", "topk": 1}', "topk: is not a known key; did you mean top_k?"),
        ('{"prompt": ""}', "prompt: is empty, and the tokenizer has no start token; provide some text"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "chat template: the model has no chat template"),
    ],
)
def test_a_wrong_line_is_named_before_anything_runs(
    archetype: Command, run_directory: Path, tmp_path: Path, line: str, message: str
) -> None:
    file, output = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    file.write_text(f'{{"prompt": "Return "}}\n\n{line}\n')
    done = archetype("generate", run_directory, "--input", file, "--output", output)
    assert done.returncode == 2 and not output.exists()
    assert done.stderr.startswith(f"archetype: {file}: line 3: {message}"), done.stderr
    assert done.stderr.count("\n") == 1 and len(done.stderr) <= 301


def test_an_output_of_another_input_is_left_alone(
    archetype: Command, run_directory: Path, prompts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "texts.jsonl"
    assert archetype("generate", run_directory, "--input", prompts, "--output", output).returncode == 0
    whole = output.read_text().splitlines(keepends=True)[0]
    for text in ('{"id": "other", "finish_reason": "stop"}\n', "notes\n", f'{whole}notes\n{{"id', '{"id": 1}\n'):
        output.write_text(text)
        done = archetype("generate", run_directory, "--input", prompts, "--output", output)
        number = text.count("\n")
        assert (done.returncode, done.stderr) == (
            2, f"archetype: {output}: line {number}: does not match any line of --input; choose another --output\n"
        )  # fmt: skip
        assert output.read_text() == text
    for options, message in (
        (["--input", prompts], "--input: has no effect without --output; add --output, or remove --input"),
        (
            ["--input", prompts, "--output", output, "text"],
            "PROMPT: cannot be combined with --input",
        ),
        (["--input", tmp_path / "none", "--output", output], f"{tmp_path / 'none'}: there is no such file"),
    ):
        done = archetype("generate", run_directory, *options)
        assert done.returncode == 2 and done.stderr.startswith(f"archetype: {message}")
