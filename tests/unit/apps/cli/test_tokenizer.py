"""`archetype tokenizer`: train, show, encode."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.tokenizer import app
from archetype.errors import ArchetypeError
from archetype.tokenizers import open_tokenizer

TEXT = "the cat sat on the mat, and then the other cat sat there é\n" * 20


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def run(*words: object, stdin: bytes | None = None) -> str:
    """What the verb prints on standard output."""
    result = CliRunner().invoke(app, [*map(str, words)], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def data(*words: object, stdin: bytes | None = None) -> dict[str, Any]:
    printed = json.loads(run(*words, "--json", stdin=stdin))
    assert isinstance(printed, dict)
    return printed


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "bpe", "byte_bpe"])
def test_train_show_and_encode(kind: str, text: Path, tmp_path: Path) -> None:
    size = [] if kind in ("bytes", "characters") else ["--vocab-size", 280]
    trained = data("train", "--text", text, "--text", text, "--kind", kind, *size, "--to", tmp_path / "made")
    tokenizer = open_tokenizer(tmp_path / "made")
    assert trained == {"folder": str(tmp_path / "made"), "kind": kind, "vocab_size": tokenizer.vocab_size}
    merges = ["--merges", 3] if "bpe" in kind else []
    shown = data("show", tmp_path / "made", "--text", text, *merges)
    assert (shown["kind"], shown["vocab_size"]) == (kind, tokenizer.vocab_size)
    tokens = len(tokenizer.encode(TEXT))
    size_of_text = len(TEXT.encode())
    assert shown["text"] == {"bytes": size_of_text, "tokens": tokens, "bytes_per_token": size_of_text / tokens}
    assert len(shown["merges"]) == len(merges) // 2 * 3
    assert data("encode", tmp_path / "made", "the cat")["ids"] == tokenizer.encode("the cat")


def test_merges_are_shown_with_their_counts(text: Path, tmp_path: Path) -> None:
    run("train", "--text", text, "--vocab-size", 280, "--to", tmp_path / "made")
    counts = [merge["count"] for merge in data("show", tmp_path / "made", "--text", text)["merges"]]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0
    first = data("show", tmp_path / "made")["merges"][0]
    assert first == {"pair": ["h", "e"], "token": "he", "count": None}
    table = run("show", tmp_path / "made", "--text", text, "--merges", 1)
    assert "h + e" in table and "bytes per token" in table and f"{counts[0]}" in table


def test_pieces_are_readable(text: Path, tmp_path: Path) -> None:
    run("train", "--text", text, "--kind", "bytes", "--to", tmp_path / "made")
    assert data("encode", tmp_path / "made", "a é") == {
        "ids": [97, 32, 195, 169],
        "pieces": ["a", "▁", "<0xC3>", "<0xA9>"],
    }
    assert run("encode", tmp_path / "made", "a\n") == "97 10\na \\n\n"


def test_a_text_comes_from_standard_input(text: Path, tmp_path: Path) -> None:
    run("train", "--text", text, "--kind", "bytes", "--to", tmp_path / "made")
    assert data("encode", tmp_path / "made", "-", stdin=b"ab\n")["ids"] == [97, 98, 10]
    with pytest.raises(ArchetypeError, match=r"standard input: is not UTF-8 at byte 1 \(line 1\)"):
        run("encode", tmp_path / "made", "-", stdin=b"a\xff")


def test_a_run_directory_is_taken(text: Path, tmp_path: Path) -> None:
    run("train", "--text", text, "--kind", "bytes", "--to", tmp_path / "run" / "tokenizer")
    assert data("show", tmp_path / "run")["kind"] == "bytes"


def test_a_growing_vocabulary_is_kept(text: Path, tmp_path: Path) -> None:
    run("train", "--text", text, "--kind", "words", "--growing", "--to", tmp_path / "made")
    tokenizer = open_tokenizer(tmp_path / "made")
    assert tokenizer.encode("entirely new") == [tokenizer.vocab_size - 2, tokenizer.vocab_size - 1]
    with pytest.raises(ArchetypeError, match="--growing: has no effect on kind bytes"):
        run("train", "--text", text, "--kind", "bytes", "--growing", "--to", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_fewer_ids_than_asked_for_are_mentioned(text: Path, tmp_path: Path) -> None:
    words = ["train", "--text", text, "--vocab-size", "5000", "--to", tmp_path / "made", "--json"]
    result = CliRunner().invoke(app, [*map(str, words)])
    assert "these texts have no more merges" in result.stderr
    assert json.loads(result.stdout)["vocab_size"] < 5000


def test_a_folder_with_contents_is_not_written_to(text: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ArchetypeError, match="already exists; choose another folder"):
        run("train", "--text", text, "--vocab-size", 280, "--to", tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "empty").mkdir()
    run("train", "--text", text, "--vocab-size", 280, "--to", tmp_path / "empty")


def test_a_parent_that_cannot_be_written_to_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchetypeError, match="cannot be written"):
        run("train", "--text", text, "--vocab-size", 280, "--to", text / "made")
    assert [*tmp_path.iterdir()] == [text]


def test_a_failed_training_leaves_nothing(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchetypeError, match="use at least 257"):
        run("train", "--text", text, "--vocab-size", 10, "--to", tmp_path / "made")
    assert [*tmp_path.iterdir()] == [text]


def test_the_verbs_load_no_library_for_their_help() -> None:
    heavy = "{'torch', 'tokenizers', 'pydantic', 'sentencepiece', 'tiktoken', 'numpy'}"
    code = f"import sys, archetype.apps.cli.tokenizer; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_opening_a_tokenizer_loads_no_torch() -> None:
    code = "import sys, archetype.tokenizers.hugging_face; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_decode_is_the_inverse_of_encode_and_names_what_is_no_token(text: Path, tmp_path: Path) -> None:
    run("train", "--kind", "bytes", "--text", text, "--to", tmp_path / "tokenizer")
    ids = list("the cat é".encode())
    assert run("decode", tmp_path / "tokenizer", *ids) == "the cat é\n"
    assert data("decode", tmp_path / "tokenizer", *ids) == {"ids": ids, "text": "the cat é"}
    for wrong in (256, 99_999_999):
        with pytest.raises(ArchetypeError, match=f"id {wrong}: is not a token of this tokenizer; use 0 to 255"):
            run("decode", tmp_path / "tokenizer", 1, wrong)
