"""Kinds of tokenizer from outside, and what is imported for those of the package."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.tokenizer import app
from archetype.errors import DataError
from archetype.tokenizers import (
    Tokenizer,
    open_tokenizer,
    register_tokenizer,
    registry,
    train_tokenizer,
    trainable_kinds,
)
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.json_file import JSONTokenizer, TokenizerFile

ROOT = Path(__file__).parents[3]


class LineFile(TokenizerFile):
    lines: list[str]


class LineTokenizer(JSONTokenizer):
    """One id for each different line."""

    kind = "lines"
    fields = LineFile

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> "LineTokenizer":
        return cls(sorted({line for text in texts for line in text.split("\n")})[:vocab_size])

    @property
    def vocab_size(self) -> int:
        return len(self.lines)

    def encode(self, text: str) -> list[int]:
        return [self.lines.index(line) for line in text.split("\n")]

    def decode(self, ids: Sequence[int]) -> str:
        return "\n".join(self.lines[id] for id in ids)

    def token(self, id: int) -> str:
        return self.lines[id]


class UpperTokenizer(ByteTokenizer):
    """With a file of its own, which is opened before the package's."""

    kind = "upper"
    files = ("*.upper",)

    @classmethod
    def open(cls, file: Path) -> "UpperTokenizer":
        return cls()

    def save(self, folder: Path) -> None:
        (folder / "a.upper").write_text("")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    register_tokenizer(LineTokenizer)
    register_tokenizer(UpperTokenizer)
    yield


def test_a_kind_from_outside_is_trained_saved_and_opened(tmp_path: Path) -> None:
    assert trainable_kinds() == ("lines", "upper", "bytes", "characters", "words", "byte_bpe", "bpe")
    tokenizer = train_tokenizer("lines", "b\na\nb", 10)
    tokenizer.eos = (1,)
    tokenizer.save(tmp_path)
    opened = open_tokenizer(tmp_path)
    assert isinstance(opened, LineTokenizer)
    assert (opened.lines, opened.eos, opened.encode("b\na")) == (["a", "b"], (1,), [1, 0])
    stream = opened.stream()
    assert "".join(map(stream.push, [1, 0, 1])) + stream.finish() == "b\na\nb"


def test_the_command_line_trains_a_kind_from_outside(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("b\na\nb")
    words = ["train", "--text", tmp_path / "a.txt", "--kind", "lines", "--to", tmp_path / "run" / "tokenizer"]
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert open_tokenizer(tmp_path / "run").kind == "lines"


def test_files_of_a_kind_from_outside_come_first(tmp_path: Path) -> None:
    for kind, vocab_size in (("byte_bpe", 300), ("upper", None)):
        train_tokenizer(kind, "some text", vocab_size).save(tmp_path)
    assert open_tokenizer(tmp_path).kind == "upper"


def test_a_damaged_file_of_a_kind_from_outside_is_named(tmp_path: Path) -> None:
    (tmp_path / "archetype_tokenizer.json").write_text('{"kind": "lines"}')
    with pytest.raises(DataError, match=r"archetype_tokenizer.json: lines: is missing; fix the file"):
        open_tokenizer(tmp_path)


def test_two_classes_of_one_kind_are_refused() -> None:
    class Other(LineTokenizer):
        pass

    class Bytes(LineTokenizer):
        kind = "bytes"

    with pytest.raises(DataError, match="Other: kind 'lines' is registered by LineTokenizer; choose another name"):
        register_tokenizer(Other)
    with pytest.raises(DataError, match="Bytes: kind 'bytes' is registered by ByteTokenizer"):
        register_tokenizer(Bytes)
    assert register_tokenizer(LineTokenizer) is LineTokenizer  # again, as an extension that is loaded twice


def test_a_class_without_a_kind_is_refused() -> None:
    class Nameless(LineTokenizer):
        kind = ""

    with pytest.raises(DataError, match="Nameless: has no kind"):
        register_tokenizer(Nameless)


def test_a_kind_that_is_only_opened_cannot_be_trained() -> None:
    with pytest.raises(DataError, match="'sentencepiece' is not a kind of tokenizer that can be trained"):
        train_tokenizer("sentencepiece", "text", 100)
    assert issubclass(registry.tokenizer_class("sentencepiece"), Tokenizer)


def test_no_library_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, tempfile, pathlib\n"
        "from archetype.tokenizers import open_tokenizer, train_tokenizer\n"
        "folder = pathlib.Path(tempfile.mkdtemp()); train_tokenizer('characters', 'abc', None).save(folder)\n"
        "assert open_tokenizer(folder).encode('cab') == [2, 0, 1]\n"
        "print(sorted({'tokenizers', 'sentencepiece', 'tiktoken', 'jinja2', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
