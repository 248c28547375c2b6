"""A text as tokens, its end held out."""

import numpy as np
import pytest

from archetype.data import corpus as module
from archetype.data.corpus import corpus, encode, split
from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer

TEXT = "".join(f"line {i} of a text\n" + "\n" * (i % 3) for i in range(400))


def test_split_holds_out_the_end() -> None:
    training, held_out = split(TEXT, 0.1)
    assert training + held_out == TEXT
    assert len(held_out) == pytest.approx(len(TEXT) / 10, abs=1)


@pytest.mark.parametrize("kind", ["bytes", "characters", "byte_bpe"])
def test_pieces_give_the_tokens_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(kind, TEXT, 300 if kind == "byte_bpe" else None)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "PIECE", 100)
    assert np.array_equal(encode(tokenizer, TEXT), np.array(tokenizer.encode(TEXT)))


def test_counts_the_bytes_of_what_is_held_out_and_knows_the_text_again() -> None:
    tokenizer = train_tokenizer("bytes", TEXT, None)
    found, same = corpus(TEXT + "é" * 50, tokenizer, 0.1), corpus(TEXT + "é" * 50, tokenizer, 0.1)
    assert found.validation_bytes == len(found.validation)
    assert found.fingerprint == same.fingerprint
    assert corpus(TEXT + "è" * 50, tokenizer, 0.1).fingerprint != found.fingerprint


def test_a_text_too_short_to_split_is_refused() -> None:
    with pytest.raises(DataError, match="text: has 2 characters, too few to hold some out"):
        split("ab", 0.1)


def test_the_library_of_this_python_is_a_few_megabytes_of_english() -> None:
    from archetype.data.library_text import library_text

    text = library_text()
    assert 1e6 < len(text.encode()) < 2e7
    assert text.count(" the ") > 10_000
