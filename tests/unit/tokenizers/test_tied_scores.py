"""Pieces of equal score: SentencePiece's BPE merges the leftmost, the `tokenizers` library the first of its list."""

import random
import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from archetype.convert.gguf.llama_cpp import check_ids
from archetype.convert.gguf.vocabulary import vocabulary
from archetype.errors import DataError, Notice
from archetype.tokenizers.fast import write_fast
from archetype.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    ModelSettings,
    Piece,
    SentencePieceTokenizer,
    write_model,
)
from tests.helpers.cases import case
from tests.helpers.examples import every

LETTERS = "abcdefgh"
SPECIAL = [Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]


def grown(kind: int, seed: int, tied: int) -> SentencePieceTokenizer:
    """A vocabulary with pieces appended whose scores are equal, as Chinese Llamas were made."""
    rng = random.Random(seed)
    letters = ["▁", *LETTERS]
    words = dict.fromkeys("".join(rng.choices(LETTERS, k=rng.choice((2, 2, 3)))) for _ in range(20 + tied))
    texts = [*words]
    scores = {text: -float(number) for number, text in enumerate(texts[tied:], start=1)}
    pieces = SPECIAL + [Piece(text, scores.get(text, 0.0), NORMAL) for text in texts]
    pieces += [Piece(letter, -100.0 - number, NORMAL) for number, letter in enumerate(letters)]
    if kind == BPE:  # as llama.cpp needs
        pieces += [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    else:
        pieces = [piece._replace(score=-2.0 * len(piece.text)) if piece.type == NORMAL else piece for piece in pieces]
    settings = ModelSettings(kind, b"", adds_prefix=True, joins_spaces=False, space_behind=False)
    return SentencePieceTokenizer(write_model(pieces, settings, {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}))


def lines(seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS + " ", k=30)) for _ in range(150)]


def differing(tokenizer: SentencePieceTokenizer, folder: Path) -> int:
    library = Library.from_file(str(folder / "tokenizer.json"))
    texts = lines(1)
    return sum(library.encode(text, add_special_tokens=False).ids != tokenizer.encode(text) for text in texts)


@pytest.mark.parametrize("seed", every(32, range(64)))
def test_a_file_with_other_ids_is_refused(seed: int, tmp_path: Path) -> None:
    """Whatever the scores: what is written without a word gives the ids of the model, which 150 other lines show."""
    for tied in (0, 2, 6, 20):
        tokenizer, folder = grown(BPE, seed, tied), tmp_path / str(tied)
        folder.mkdir()
        tokenizer.save(folder)
        with case(tied):
            try:
                write_fast(tokenizer, folder)
            except DataError as error:
                assert tied and "has other ids there" in str(error) and "--allow-different-tokens" in error.remedy
                (folder / "tokenizer.json").unlink()
                with pytest.warns(Notice, match="has other ids there"):
                    write_fast(tokenizer, folder, allow_different_tokens=True)
            else:
                assert differing(tokenizer, folder) == 0
            check_ids(tokenizer, vocabulary(tokenizer, tokenizer.vocab_size))  # llama.cpp merges as SentencePiece does


def test_overlapping_pieces_of_one_score_are_found(tmp_path: Path) -> None:
    refused = 0
    for seed in range(6):
        folder, tokenizer = tmp_path / str(seed), grown(BPE, seed, 20)
        folder.mkdir()
        tokenizer.save(folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            write_fast(tokenizer, folder, allow_different_tokens=True)
        refused += any("other ids" in str(one.message) for one in caught)
        assert bool(differing(tokenizer, folder)) <= any("other ids" in str(one.message) for one in caught)
    assert refused > 3


@pytest.mark.parametrize("seed", every(4, range(16)))
def test_unigrams_ties_are_those_of_the_library(seed: int, tmp_path: Path) -> None:
    """Many ways of one score through a text: both take the same."""
    tokenizer = grown(UNIGRAM, seed, 10)
    tokenizer.save(tmp_path)
    write_fast(tokenizer, tmp_path)
    assert differing(tokenizer, tmp_path) == 0
