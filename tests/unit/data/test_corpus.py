"""A text as tokens."""

import sysconfig
import textwrap
from pathlib import Path

import numpy as np
import pytest

from archetype.data import corpus as module
from archetype.data import library_text
from archetype.data.corpus import corpus, encode
from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer

TEXT = "".join(f"line {i} of a text\n" + "\n" * (i % 3) for i in range(400))


@pytest.mark.parametrize("kind", ["bytes", "characters", "byte_bpe"])
def test_pieces_give_the_tokens_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(kind, TEXT, 300 if kind == "byte_bpe" else None)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "CHUNK", 100)
    assert np.array_equal(encode(tokenizer, TEXT), np.array(tokenizer.encode(TEXT)))


def test_counts_the_bytes_of_what_is_held_out_and_knows_the_text_again() -> None:
    tokenizer = train_tokenizer("bytes", TEXT, None)
    original, same = (corpus(TEXT + "é" * 50, tokenizer, 0.1, "end") for _ in "ab")
    assert original.validation_bytes == len(original.validation)
    assert original.fingerprint == same.fingerprint
    assert corpus(TEXT + "è" * 50, tokenizer, 0.1, "end").fingerprint != original.fingerprint


def test_the_library_of_this_python_is_a_few_megabytes_of_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth file of it stands for all: parsing them takes most of the time."""
    files = library_text.source_files(Path(sysconfig.get_path("stdlib")))
    assert len(files) > 300 and not any("site-packages" in file.parts for file in files)
    monkeypatch.setattr(library_text, "source_files", lambda root: files[::10])
    text = library_text.library_text()
    assert library_text.library_text(1000) == text[:1000]
    assert 1e5 < len(text.encode()) < 2e6
    assert text.count(" the ") > 1_000


def test_a_python_without_the_sources_of_its_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="this Python lacks the sources of its standard library; pass a text with"):
        library_text.library_text()


def test_docstrings_and_comments_are_taken_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"This is passage number {n}, long enough to be taken." for n in range(5)]
    source = f'''
        """{texts[0]}"""
        if True:
            try:
                class A:
                    """{texts[1]}"""
                    async def f(self):
                        "{texts[2]}"
            except E:
                def g():
                    "{texts[3]}"
        # {texts[4]}
        "too short a comment follows"  # not a line of its own, however long it is made
        # {texts[4][:30]}
    '''
    (tmp_path / "a.py").write_text(textwrap.dedent(source))
    (tmp_path / "broken.py").write_text("def")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert library_text.library_text() == "\n\n".join(texts) + "\n"
