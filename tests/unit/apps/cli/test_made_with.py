"""Outputs that go on from a file: what was made with another model, input or setting is neither kept nor mixed."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import app
from archetype.errors import DataError
from archetype.families.llama import llama
from archetype.families.original_transformer import transformer
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.examples import every
from tests.helpers.weights import randomize

SIZES: dict[str, Any] = dict(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=257, context_length=64)
KINDS: dict[str, Callable[..., Any]] = {"generate": llama, "translate": transformer}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
# of each verb: its input's name and lines, its output's, flags, and one change of each: of lines, and of flags
CASES: dict[str, tuple[str, str, list[dict[str, Any]], list[str], dict[str, Any], list[str]]] = {
    "texts": ("generate", "texts.jsonl", [{"prompt": "a"}, {"prompt": "b"}], ["--temperature", "0"],
              {"prompt": "c"}, ["--temperature", "0.5"]),
    "settings of a line": ("generate", "texts.jsonl", [{"prompt": "a", "top_k": 3}, {"prompt": "b"}], ["--seed", "1"],
                           {"prompt": "b", "top_p": 0.5}, ["--seed", "2"]),
    "conversations": ("generate", "texts.jsonl", [{"messages": [{"role": "user", "content": "a"}]}] * 2,
                      ["--max-new-tokens", "5"], {"messages": [{"role": "user", "content": "b"}]},
                      ["--max-new-tokens", "6"]),
    "records": ("translate", "targets.jsonl", [{"source": "a"}, {"source": "b"}], ["--num-beams", "2"],
                {"source": "c"}, ["--num-beams", "1"]),
    "lines": ("translate", "targets.txt", [{"source": "a"}, {"source": "b"}], ["--num-beams", "2"],
              {"source": "c"}, ["--num-beams", "2", "--length-penalty", "0.5"]),
}  # fmt: skip


def model(verb: str, seed: int) -> LanguageModel:
    spec = KINDS[verb](**SIZES)
    tokenizer = train_tokenizer("byte_bpe", "the cat sat", 257)
    return LanguageModel(spec, randomize(build(spec), seed=seed), tokenizer, template=ChatTemplate(TEMPLATE, {}))


def run(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("case", every(2, CASES))
def test_an_output_of_another_model_input_or_setting_is_refused(case: str, tmp_path: Path) -> None:
    verb, name, lines, flags, other_line, other_flags = CASES[case]
    for seed in (0, 1):
        model(verb, seed).save(tmp_path / f"model {seed}")
    input = tmp_path / "input.jsonl"
    output = tmp_path / name
    said = {"model": ["model 0", "model 1"], "input": [lines, [lines[0], other_line]], "settings": [flags, other_flags]}
    for choice in itertools.product((0, 1), repeat=3):
        folder, content, options = (values[index] for values, index in zip(said.values(), choice, strict=True))
        input.write_text("".join(json.dumps(line) + "\n" for line in content))
        command = (verb, tmp_path / str(folder), "--input", input, "--output", output, *options)
        before = output.read_text() if output.exists() else None
        if not any(choice):
            run(*command)
            whole = output.read_text()
            run(*command)  # nothing has changed
            assert output.read_text() == whole
            continue
        with pytest.raises(DataError, match=r"was made with a different .*; choose another --output") as caught:
            run(*command)
        assert output.read_text() == before
        words = [name for name, changed in zip(said, choice, strict=True) if changed]
        different = str(caught.value).partition("made with a different ")[2]
        assert case == "settings of a line" or any(word in different for word in words)
    output.unlink()
    run(*command)  # a new output
    assert output.read_text() != before


def test_an_output_that_does_not_say_is_refused(tmp_path: Path) -> None:
    model("generate", 0).save(tmp_path / "model")
    (tmp_path / "input.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "texts.jsonl").write_text('{"id": 1, "text": "b", "finish_reason": "stop"}\n')
    with pytest.raises(DataError, match=r"texts.jsonl: line 1: does not record its model and settings; choose another"):
        run("generate", tmp_path / "model", "--input", tmp_path / "input.jsonl", "--output", tmp_path / "texts.jsonl")
