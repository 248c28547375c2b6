"""Bad records of a run's data: refused, or left out and counted in the run, its provenance, its report and `runs`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from archetype.io.yaml import read_mapping
from tests.integration.conftest import Command

TEXT = "row {} of the table, which is long enough to be a text of some tokens"
BAD_LINES = {3: b"{broken", 50: b'{"body": "x"}', 120: b'{"text": null}', 121: b'{"text": "\xff"}'}


def lines(folder: Path) -> Path:
    rows = [BAD_LINES.get(number, json.dumps({"text": TEXT.format(number)}).encode()) for number in range(200)]
    (file := folder / "messy.jsonl").write_bytes(b"\n".join(rows))
    return file


def table(folder: Path) -> Path:
    rows = [f'"{TEXT.format(number)}",{"ab"[number % 2]}\n'.encode() for number in range(60)]
    rows[7:7] = [b"a, b,c\n", b"latin \xe9,a\n", b",a\n", b'"x"y,a\n']
    (file := folder / "messy.csv").write_bytes(b"text,label\n" + b"".join(rows))
    return file


def pictures(folder: Path) -> Path:
    from PIL import Image

    for number in range(16):
        (file := folder / "pictures" / "ab"[number % 2] / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(file)
    for number in range(4):
        (folder / "pictures" / "a" / f"bad{number}.png").write_bytes(b"no picture")
    return folder / "pictures"


@pytest.mark.parametrize(("option", "make"), [("--text", lines), ("--labelled", table), ("--images", pictures)])
def test_bad_records_are_counted_wherever_a_run_is_told_of(
    option: str, make: Callable[[Path], Path], archetype: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHETYPE_CACHE", str(tmp_path / "cache"))
    file, run = make(tmp_path), tmp_path / "runs" / "messy"
    command = ("train", option, file, "--steps", "2", "--to", run)
    refused = archetype(*command)
    assert refused.returncode == 2 and not run.exists() and "--skip-bad" in refused.stderr
    assert archetype(*command, "--skip-bad", "3").returncode == 2 and not run.exists()
    done = archetype(*command, "--skip-bad", "4")
    assert done.returncode in (0, 1), done.stderr
    place = {"--text": "line 4", "--labelled": "line 9", "--images": "bad0.png"}[option]
    assert "4 bad records were left out: " in done.stderr and place in done.stderr
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["num_skipped"] == 4 and len(provenance["skipped"]) == 3 and place in provenance["skipped"][0]
    assert "<p>4 bad records were left out: " in (run / "report.html").read_text()
    assert read_mapping(run / "recipe.yaml")["data"]["skip_bad"] == 4
    assert "skipped records" in archetype("runs", tmp_path / "runs").stdout
    assert json.loads(archetype("runs", tmp_path / "runs", "--json").stdout)["runs"][0]["num_skipped"] == 4
    resumed = archetype("train", "--resume", run, "--steps", "3")
    assert resumed.returncode in (0, 1), resumed.stderr
    assert json.loads((run / "provenance.json").read_text())["num_skipped"] == 4
    again = archetype("train", option, file, "--steps", "2", "--skip-bad", "1", "--to", tmp_path / "other")
    assert again.returncode == 2 and not (tmp_path / "other").exists()  # also where the cache has them tokenised


def test_bad_records_of_many_pieces_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece by a process of its own, as it is read."""
    from archetype.data import sources
    from archetype.data.skipping import TooManyBad, skipping
    from archetype.data.sources import Sources
    from archetype.data.tokenization import tokenized
    from archetype.tokenizers import train_tokenizer

    monkeypatch.setattr(sources, "PIECE_BYTES", 3000)
    text_sources, tokenizer = Sources((str(lines(tmp_path)),)), train_tokenizer("bytes", [], None)
    assert len(text_sources.pieces()) > 4
    for workers in (1, 2):
        with skipping(4) as skipped:
            documents = tokenized(text_sources, tokenizer, tmp_path / f"cache{workers}", workers)
        assert skipped.count == 4 and documents.num_documents == 196
        with skipping(3), pytest.raises(TooManyBad):
            tokenized(text_sources, tokenizer, tmp_path / f"cache{workers}", workers)
        with skipping(3), pytest.raises(TooManyBad):
            tokenized(text_sources, tokenizer, tmp_path / f"other{workers}", workers)


def test_the_alphabet_of_records_is_that_of_their_texts(archetype: Command, tmp_path: Path) -> None:
    (file := tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"café {number} naïve", "label": "ab"[number % 2]}) + "\n" for number in range(30))
    )
    done = archetype("train", "--labelled", file, "--tokenizer", "characters", "--steps", "2", "--to", tmp_path / "run")
    assert done.returncode in (0, 1), done.stderr
