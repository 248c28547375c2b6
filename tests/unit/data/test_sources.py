"""Documents of every kind of source: each once, whatever the pieces, and what is wrong in one line."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.data import sources
from archetype.data.sources import NAME_COLUMN, SUFFIXES, Sources, expand
from archetype.errors import DataError
from tests.helpers import forked

TEXTS = [f"document {n}: größer\n\n" + "words " * (n % 7) + "\U0001f642" for n in range(40)]


def read(*names: Path | str, field: str = "text", separator: str | None = None) -> list[str]:
    everything = Sources(tuple(map(str, names)), field, separator)
    return [text for piece in everything.pieces() for text in everything.documents(piece)]


def refusal(*names: Path | str, **options: str) -> str:
    with pytest.raises(DataError) as caught:
        read(*names, **options)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("piece_bytes", [2**24, 100, 7])
def test_json_lines_have_each_document_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", piece_bytes)
    lines = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)) + "\n"
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "b.jsonl.gz") == TEXTS


@given(st.lists(st.text("ab\n é", max_size=30), max_size=12), st.integers(1, 40), st.sampled_from(["", "---"]))
def test_a_separator_ends_a_document_wherever_pieces_are_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], piece_bytes: int, separator: str
) -> None:
    file = tmp_path_factory.mktemp("text") / "a.txt"
    lines = [line for text in texts for line in (*text.split("\n"), separator)]
    file.write_text("\n".join(lines))
    groups: list[list[str]] = [[]]
    for line in lines:
        groups.append([]) if line == separator else groups[-1].append(line)
    expected = [text for text in ("\n".join(group) for group in groups) if text.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_BYTES", piece_bytes)
        assert [text.removesuffix("\n") for text in read(file, separator=separator)] == expected


@given(st.text("ab\n é🙂", max_size=300), st.integers(1, 30), st.integers(1, 4))
def test_a_file_without_separators_is_cut_into_sections_at_line_ends(
    tmp_path_factory: pytest.TempPathFactory, text: str, section: int, sections: int
) -> None:
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SECTION", section), ("LOOK_AHEAD", 8), ("PIECE_BYTES", section * sections)):
            patch.setattr(sources, name, value)
        whole = Sources((str(file),))
        parts = [part for piece in whole.pieces() for part in piece]
        cut = [text for part in parts for text in whole._documents(part)]
        assert "".join(cut) == text
        (packed := file.with_suffix(".txt.gz")).write_bytes(gzip.compress(text.encode()))
        assert read(packed) == read(file)


def test_parquet_and_data_sets_are_read_in_order() -> None:
    """In a process of its own, for the libraries start threads that would stand beside all further tests."""
    options = ["-o", "python_functions=alone_*", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
    done = forked.run(["python", "-m", "pytest", *options, __file__])
    assert done.returncode == 0 and b"1 passed" in done.stdout, (done.stdout + done.stderr).decode()


def alone_parquet_and_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    monkeypatch.setattr(sources, "PIECE_BYTES", 1000)
    table = pyarrow.table({"text": TEXTS, "n": range(len(TEXTS))})
    (tmp_path / "folder").mkdir()
    parquet.write_table(table, tmp_path / "folder" / "train.parquet", row_group_size=7)
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "folder" / "train.parquet") == TEXTS
    assert len(Sources((str(tmp_path / "folder" / "train.parquet"),)).pieces()) > 1
    assert read(f"hf:{tmp_path / 'saved'}") == TEXTS
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert read(f"hf:{tmp_path / 'lines'}") == TEXTS  # streamed
    file = tmp_path / "folder" / "train.parquet"
    assert refusal(file, field="body") == (f"{file}: has no column 'body'; it has text, n; {NAME_COLUMN}")
    parquet.write_table(pyarrow.table({"text": ["a", "b", "", "c", None]}), tmp_path / "null.parquet", row_group_size=2)
    (tmp_path / "null.jsonl").write_text('{"text": "a"}\n\n{"text": ""}\n{"text": null}\n')
    for name, place in (("null.parquet", "row 5"), ("null.jsonl", "line 4")):
        assert refusal(tmp_path / name).startswith(f"{tmp_path / name}: {place}: has nothing in column 'text'")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    assert refusal(tmp_path / "bad.parquet").startswith(f"{tmp_path / 'bad.parquet'}: is not a Parquet file: ")
    with pytest.raises(DataError, match=r"hf:owner/name: is not a local folder, and its revision cannot"):
        sources.pinned("hf:owner/name")
    assert sources.pinned(f"hf:{tmp_path / 'saved'}") == f"hf:{tmp_path / 'saved'}"
    assert sources.pinned("hf:owner/name@1:plain") == "hf:owner/name@1:plain"


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("hf:owner/name", ("owner/name", "train", None, None)),
        ("hf:owner/name:en", ("owner/name", "train", "en", None)),
        ("hf:owner/name::test", ("owner/name", "test", None, None)),
        ("hf:owner/name@v2:en:test", ("owner/name", "test", "en", "v2")),
    ],
)
def test_a_name_says_configuration_split_and_revision(
    said: str, arguments: tuple[str, str, str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    asked = []

    def load(path: str, /, split: str, streaming: bool, **rest: str | None) -> list[dict[str, str]]:
        asked.append((path, split, rest["name"], rest["revision"]))
        return [{"text": "a"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert sources._data_set(said) == [{"text": "a"}] and asked == [arguments]


def test_what_cannot_be_read_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "c.txt").write_bytes(b"text \xff")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"text " * 999)[:-9])
    for name, message in {
        "a.jsonl": f"line 2: has no column 'text'; it has body; {NAME_COLUMN}",
        "b.jsonl": "line 2: is not a JSON object: Expecting value",
        "c.txt": "is not UTF-8 at byte 5; save it as UTF-8",
        "d.txt.gz": "is truncated, or not a gzip file; download it again",
    }.items():
        assert f"{tmp_path / name}: {message}" in refusal(tmp_path / name)
    with pytest.raises(DataError, match=r"nowhere.jsonl: cannot be read: No such file"):
        Sources((str(tmp_path / "nowhere.jsonl"),)).stamps()


def test_a_folder_has_the_files_of_all_kinds_and_a_pattern_its_own(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "c.parquet", "d.csv"):
        (tmp_path / name).touch()
    names = [Path(file).name for file in expand([str(tmp_path)], SUFFIXES)]
    assert names == ["a.jsonl", "b.txt", "c.parquet", "d.csv"]
    assert expand(["hf:owner/name", str(tmp_path / "*.csv")], SUFFIXES) == ("hf:owner/name", str(tmp_path / "d.csv"))
