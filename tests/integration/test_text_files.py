"""Every verb that takes a file of text reads records as `train` does, or refuses the file in one line."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archetype.data.pairs import read_pairs
from archetype.errors import ArchetypeError
from archetype.tokenizers import open_tokenizer
from tests.helpers.options import call, options, verbs

DRAWN = random.Random(0)
TEXTS = [" ".join(DRAWN.choice(["thé", "model", "reads", "a,token", "next"]) for _ in range(8)) for _ in range(60)]
RECORDS = [{"q": number, "text": text} for number, text in enumerate(TEXTS)]  # no text has a q, a digit or a brace


def _table(delimiter: str) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows([["q", "text"], *([record["q"], record["text"]] for record in RECORDS)])
    return file.getvalue().encode()


LINES = "\n".join(map(json.dumps, RECORDS)).encode()
PLAIN = "\n".join(TEXTS).encode()
RECORD_FILES = {
    "a.csv": _table(","), "a.tsv": _table("\t"), "a.jsonl": LINES, "a.ndjson": LINES,
    "a.json": json.dumps(RECORDS).encode(), "a.csv.gz": gzip.compress(_table(",")),
    "a.jsonl.gz": gzip.compress(LINES), "a.parquet": b"",
}  # fmt: skip
TEXT_FILES = {"a.txt": PLAIN, "a.txt.gz": gzip.compress(PLAIN), "bom.txt": b"\xef\xbb\xbf" + PLAIN}
REFUSED = {
    "a.txt.zst": b"\x28\xb5\x2f\xfd" + bytes(200), "a.jsonl.zst": b"\x28\xb5\x2f\xfd\xff" + bytes(200),
    "a.txt.xz": b"\xfd7zXZ\x00" + bytes(200), "a.bin": random.Random(1).randbytes(2000),
    "wide.txt": PLAIN.decode().encode("utf-16"), "wide.csv": _table(",").decode().encode("utf-16"),
    "wide.jsonl": LINES.decode().encode("utf-16"), "bad.csv.gz": _table(","), "bad.txt.gz": PLAIN,
    "bad.json": b"[1, 2", "bad.parquet": b"PAR1" + bytes(100), "empty.txt": b"", "empty.csv": b"q,text\n",
    "packed.txt": gzip.compress(PLAIN),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, and a model that reads bytes."""
    folder = tmp_path_factory.mktemp("files")
    for name, data in (RECORD_FILES | TEXT_FILES | REFUSED).items():
        (folder / name).write_bytes(data)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        (folder / "a.parquet").unlink()
    else:
        pq.write_table(pa.Table.from_pylist(RECORDS), folder / "a.parquet")
    mixer = {"kind": "attention", "num_heads": 1, "position": {"kind": "rotary"}}
    block = {"mixer": mixer, "wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}}}
    spec = {"vocab_size": 256, "context_length": 64, "d_model": 8, "layers": [block], "final_norm": "rms"}
    (folder / "spec.json").write_text(json.dumps(spec))
    train = "train a.txt --spec spec.json --tokenizer bytes --steps 1 --sequence-length 16 --batch-size 2 --to run"
    done = call(train.split(), folder)
    assert done.status == 0, done.error
    return folder


def _learned(folder: Path, file: str) -> Any:
    return call(["tokenizer", "train", "--text", file, "--kind", "characters", "--to", "new"], folder)


def _trained(folder: Path, file: str) -> Any:
    sizes = "--spec spec.json --sequence-length 16 --batch-size 2 --steps 1 --tokenizer characters"
    return call(["train", "--text", file, *sizes.split(), "--to", "new"], folder)


def _alphabet(folder: Path, done: Any) -> object:
    """What the tokens of a tokenizer of characters, or of a run's, spell."""
    inside = folder / "new" / "tokenizer"
    tokenizer = open_tokenizer(inside if inside.is_dir() else folder / "new")
    return {tokenizer.decode([id]) for id in range(tokenizer.vocab_size)}


def _is_alphabet(outcomes: Any, texts: list[str]) -> bool:
    return bool({one for one in outcomes if len(one) == 1} == set("".join(texts)))


def _is_size(outcomes: Any, texts: list[str]) -> bool:
    return bool(outcomes == sum(len(text.encode()) for text in texts))


def _demo(folder: Path, file: str) -> Any:
    return call(["demo", "--text", file, "--to", "new"], folder)


WAYS: dict[str, tuple[Callable[[Path, str], Any], Callable[[Path, Any], Any], Callable[[Any, list[str]], bool]]] = {
    "train": (_trained, _alphabet, _is_alphabet),
    "tokenizer train": (_learned, _alphabet, _is_alphabet),
    "tokenizer show": (
        lambda folder, file: call(["tokenizer", "show", "run", "--text", file, "--json"], folder),
        lambda folder, done: json.loads(done.output)["text"]["bytes"], _is_size,
    ),
    "evaluate": (
        lambda folder, file: call(["evaluate", "run", "--text", file, "--json"], folder),
        lambda folder, done: json.loads(done.output)["texts"][0]["num_bytes"], _is_size,
    ),
    "evaluate FILE": (
        lambda folder, file: call(["evaluate", "run", file, "--json"], folder),
        lambda folder, done: json.loads(done.output)["texts"][0]["num_bytes"], _is_size,
    ),
    "transplant": (
        lambda folder, file: call(["transplant", "run", "name=other", "--text", file, "--to", "new", "--json"], folder),
        lambda folder, done: json.loads(done.output)["proof"]["num_tokens"],
        lambda outcomes, texts: bool(outcomes == min(4 * 64, len("\n".join(texts).encode()))),
    ),
    "demo": (_demo, lambda folder, done: len((folder / "demo.txt").read_bytes()), lambda outcomes, texts: bool(
        outcomes == len("\n".join(texts).encode()))),
}  # fmt: skip


@pytest.fixture
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the files, in which `demo` writes its text down and ends."""
    from archetype.apps.cli import demo
    from archetype.training import setup

    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)

    really = setup.start

    def start(run: Path, recipe: Any, device: Any, text: str | None = None, *more: Any, **others: Any) -> Any:
        if recipe is not None:
            return really(run, recipe, device, text, *more, **others)
        assert text is not None
        (tmp_path / "demo.txt").write_bytes(text.encode())
        raise SystemExit(0)

    monkeypatch.setattr(demo, "demo_recipe", lambda spec, minutes: None)
    monkeypatch.setattr(setup, "start", start)
    monkeypatch.setenv("ARCHETYPE_CACHE", str(tmp_path / "cache"))
    return tmp_path


FAST = ("a.csv", "a.json", "a.jsonl.gz", "a.parquet", "a.txt.gz", "wide.csv", "a.txt.zst", "a.bin")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in (*RECORD_FILES, *TEXT_FILES, *REFUSED)
    ],
)
@pytest.mark.parametrize("verb", WAYS)
def test_the_text_is_that_of_the_records_or_the_file_is_refused(verb: str, name: str, place: Path) -> None:
    if not (place / name).exists():
        pytest.skip("needs pyarrow")
    run, outcomes, is_right = WAYS[verb]
    done = run(place, name)
    if name in REFUSED:
        assert done.status == 2 and not (place / "new").exists(), done.error
        assert name in done.error and done.error.count("\n") == 1 and ";" in done.error, done.error
        return
    assert done.status in (0, 1), done.error
    assert is_right(outcomes(place, done), TEXTS if name in RECORD_FILES else ["\n".join(TEXTS)])


def test_every_option_of_a_text_file_is_walked() -> None:
    named = {verb for verb, command in verbs() for one in options(command) if one.opts[0] == "--text"}
    named -= {"parity"}  # whose --text is the text itself
    assert named == {verb for verb in WAYS if verb != "evaluate FILE"}


@pytest.mark.parametrize("name", [name for name in RECORD_FILES if not name.endswith((".jsonl", ".ndjson"))])
def test_what_reads_lines_refuses_records(name: str, place: Path) -> None:
    if not (place / name).exists():
        pytest.skip("needs pyarrow")
    for words in (["translate", "run", "--input", name, "--output", "o.txt"],
                  ["generate", "run", "--input", name, "--output", "o.jsonl"]):  # fmt: skip
        done = call(words, place)
        assert done.status == 2 and name in done.error and done.error.count("\n") == 1, done.error
        assert not (place / words[-1]).exists()
    with pytest.raises(ArchetypeError, match="is a file of records; pass a file of records with --data"):
        read_pairs((place / name, place / "a.txt"))


def test_a_column_is_chosen_by_name_or_by_its_texts(place: Path) -> None:
    (place / "other.csv").write_text("number,body\n1,abc\n2,de\n")
    (place / "two.csv").write_text("one,two\na,xyz\nb,w\n")
    for words, size in ((["other.csv"], 5), (["two.csv", "--column", "two"], 4)):
        done = call(["tokenizer", "show", "run", "--json", "--text", *words], place)
        assert json.loads(done.output)["text"]["bytes"] == size, done.error
    done = call(["evaluate", "run", "--json", "--text", "two.csv", "--column", "one"], place)
    assert done.status == 2 and "two.csv: text 1: text: has fewer than two tokens, and nothing to predict" in done.error
    train = "tokenizer train --text two.csv --column two --kind characters --to new"
    done = call(train.split(), place)
    assert _is_alphabet(_alphabet(place, done), ["xyz", "w"]), done.error
    done = call(["tokenizer", "show", "run", "--text", "two.csv"], place)
    assert done.status == 2 and "select the text column, such as --column one" in done.error
    done = call(["tokenizer", "show", "run", "--text", "a.txt", "--column", "text"], place)
    assert done.status == 2 and "a.txt is plain text" in done.error
