"""Documents are tokenised once, by any number of processes, and what is damaged or half done is never read."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from archetype.data import sources
from archetype.data.shards import TokenizedDocuments
from archetype.data.sources import Sources
from archetype.data.tokenization import cache_folder, reporting, tokenized
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, train_tokenizer

GIGABYTE = 10**9
TEXTS = [f"text {n} " + "of some words " * (n % 9) for n in range(300)]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents in several pieces."""
    monkeypatch.setattr(sources, "PIECE_BYTES", 4000)
    write(tmp_path / "a.jsonl", TEXTS)
    return tmp_path / "a.jsonl"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("byte_bpe", TEXTS, 300)


def write(file: Path, texts: list[str]) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def counted(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are encoded from now on."""
    texts: list[str] = []
    encode = type(tokenizer).encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: texts.append(text) or encode(self, text))
    return texts


def all_tokens(documents: TokenizedDocuments) -> list[bytes]:
    return [shard.tokens.tobytes() + shard.documents.tobytes() for shard in documents.shards]


def documents_of(documents: TokenizedDocuments, tokenizer: Tokenizer) -> list[str]:
    texts = []
    for shard in documents.shards:
        for ids in np.split(shard.tokens, shard.documents[1].astype(np.int64))[:-1]:
            assert ids[-1] == tokenizer.eos[0]
            texts.append(tokenizer.decode(ids[:-1].tolist()))
    return texts


def test_every_document_is_tokenised_once_and_never_again(
    file: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, reported = counted(tokenizer, monkeypatch), []
    with reporting(lambda *sizes: reported.append(sizes)):
        first = tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")
    assert encoded == TEXTS and reported[-1][0] <= reported[-1][1] == file.stat().st_size
    told = len(reported)
    assert sorted(documents_of(first, tokenizer)) == sorted(TEXTS)
    assert first.manifest.dtype == "<u2" and len(first.shards) > 2
    again = tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")
    assert (again.manifest, again.folder, len(encoded)) == (first.manifest, first.folder, len(TEXTS))
    other = tokenized(Sources((str(file),)), train_tokenizer("bytes", "", None), tmp_path / "cache")
    assert other.folder != first.folder and len(reported) == told  # of what is read within its block alone
    write(file, [*TEXTS, "one more"])
    changed = tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")
    assert changed.manifest.fingerprint != first.manifest.fingerprint


def test_processes_write_what_one_writes(file: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    one = tokenized(Sources((str(file),)), tokenizer, tmp_path / "one", workers=1)
    two = tokenized(Sources((str(file),)), tokenizer, tmp_path / "two", workers=2)
    assert one.manifest == two.manifest and all_tokens(one) == all_tokens(two)
    write(file, [*TEXTS[:200], "\ud800", *TEXTS])
    with pytest.raises(DataError) as caught:
        tokenized(Sources((str(file),)), tokenizer, tmp_path / "two", workers=2)
    assert "an unpaired surrogate" in str(caught.value)


def test_a_kill_leaves_nothing_that_is_read_and_what_was_done_is_used(
    file: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenized(Sources((str(file),)), tokenizer, tmp_path / "whole", workers=1)
    for number in (1, 100, 250, 299):
        cache = tmp_path / f"killed at {number}"
        if (pid := os.fork()) == 0:
            encoded = counted(tokenizer, monkeypatch)
            encode = type(tokenizer).encode

            def killed(self: Tokenizer, text: str, encode=encode, encoded=encoded, number=number) -> list[int]:  # type: ignore[no-untyped-def]
                if len(encoded) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return encode(self, text)

            monkeypatch.setattr(type(tokenizer), "encode", killed)
            tokenized(Sources((str(file),)), tokenizer, cache, workers=1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        assert not list(cache.rglob("manifest.json"))
        with monkeypatch.context() as patch:
            encoded = counted(tokenizer, patch)
            resumed = tokenized(Sources((str(file),)), tokenizer, cache, workers=1)
        assert resumed.manifest == whole.manifest and all_tokens(resumed) == all_tokens(whole)
        assert len(encoded) == len(TEXTS) if number == 1 else len(encoded) < len(TEXTS)
        assert not list(resumed.folder.glob(".*"))


def test_a_damaged_shard_is_named_and_made_again_alone(
    file: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")
    before = all_tokens(whole)
    for kind in ("tokens", "documents"):
        shard = whole.folder / f"00001-000.{kind}"
        for damage in (lambda data: data[:-2], lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]):
            shard.write_bytes(damage(shard.read_bytes()))
            with pytest.raises(DataError) as caught:
                tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")
            cause = "is damaged: its SHA-256 differs from the manifest; remove it to tokenize it again"
            assert str(caught.value) == f"{shard}: {cause}"
            shard.unlink()
            with monkeypatch.context() as patch:
                encoded = counted(tokenizer, patch)
                assert all_tokens(tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")) == before
            assert 0 < len(encoded) < len(TEXTS) / 3
    (whole.folder / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match=r"manifest.json: is damaged; remove it to tokenize it again"):
        tokenized(Sources((str(file),)), tokenizer, tmp_path / "cache")


def test_a_kind_of_tokenizer_from_outside_is_used_in_this_process(file: Path, tmp_path: Path) -> None:
    Bytes = type(train_tokenizer("bytes", "", None))

    class Outside(Bytes):  # type: ignore[misc, valid-type]
        """As bytes, but defined in a test."""

    documents = tokenized(Sources((str(file),)), Outside(), tmp_path, workers=2)
    assert sum(shard.record.documents for shard in documents.shards) == len(TEXTS)


def test_what_holds_no_text_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path / "a.jsonl", ["", " \n"])
    with pytest.raises(DataError, match=r"a.jsonl: contains no text; choose sources with text"):
        tokenized(Sources((str(tmp_path / "a.jsonl"),)), tokenizer, tmp_path / "cache")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ARCHETYPE_CACHE", str(tmp_path / "own"))
    assert cache_folder(str(tmp_path / "stated")) == tmp_path / "stated"
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ARCHETYPE_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "archetype"


PEAK = """
import resource, sys
from pathlib import Path
from archetype.data import shards, sources, tokenization
from archetype.tokenizers import train_tokenizer
sources.PIECE_BYTES = sources.SECTION = 2**18
shards.SHARD_TOKENS = 2**18
folder, size = Path(sys.argv[1]), int(sys.argv[2])
line = ("a line of words " * 8 + "\\n").encode()
(folder / "a.txt").write_bytes(line * (size // len(line)))
names = (str(folder / "a.txt"),)
documents = tokenization.tokenized(sources.Sources(names), train_tokenizer("bytes", "", None), folder, workers=1)
training, _ = documents.split(0.1)
for start in range(0, training.num_tokens, 2**16):
    training.read(start, 1024)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Of eight times the text, 7 MiB more, less than 4 MiB more are resident; in memory its tokens alone take 28."""
    peaks = []
    for size in (2**20, 2**23):
        folder = tmp_path / str(size)
        folder.mkdir()
        result = subprocess.run([sys.executable, "-c", PEAK, folder, str(size)], capture_output=True, check=True)
        peaks.append(int(result.stdout) * 1024)
    assert peaks[1] - peaks[0] < 2**22, peaks


@pytest.fixture
def two_cores() -> Iterator[None]:
    """A worker for each of two cores, on a machine of any size: each has memory of its own."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [*cores][:2])
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps, which says what is in memory"
)
@pytest.mark.usefixtures("two_cores")
def test_a_gigabyte_of_text_is_learned_from_within_a_gigabyte(tmp_path: Path) -> None:
    """All processes together, while they tokenise and while the model learns; then from the cache."""
    from benchmarks.data import trained, write_text

    write_text(tmp_path / "text.txt", GIGABYTE)
    for name in ("first", "second"):
        _, resident, _ = trained(tmp_path, name, "llama-tiny", 200)
        assert 10**8 < resident < 10**9  # the control: of a process with PyTorch
