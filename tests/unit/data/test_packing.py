"""Rows of documents: each token once an epoch, exact mixtures, and the same documents held out whatever is added."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.data import shards, sources
from archetype.data.packing import Documents, PackedStream
from archetype.data.shards import TokenizedDocuments, TokenStream, is_held_out
from archetype.data.sources import Sources
from archetype.data.tokenization import tokenized
from archetype.errors import DataError, SpecError
from archetype.tokenizers import train_tokenizer
from tests.helpers.examples import examples

BYTES = train_tokenizer("bytes", "", None)


def written(folder: Path, texts: list[str], name: str = "a") -> TokenizedDocuments:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tokenized(Sources((str(file),)), BYTES, folder / "cache")


def whole(stream: TokenStream) -> list[int]:
    return stream.read(0, stream.num_tokens).tolist() if stream.num_tokens else []


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 50), st.integers(0, 2**40))
@examples(8)
def test_each_token_is_predicted_once_an_epoch_after_the_one_before_it(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], length: int, seed: int
) -> None:
    """Tokens are told apart by their places: the documents' bytes are read from the shards as they stand there."""
    folder = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_BYTES", 300)
        patch.setattr(shards, "SHARD_TOKENS", 100)
        documents = written(folder, [chr(97 + n % 26) * size for n, size in enumerate(lengths)])
    stream, held_out = documents.split(1e-18)
    assert not held_out.num_tokens and stream.num_tokens == sum(lengths)
    tokens, starts = stream.read(0, stream.num_tokens), stream.starts(0, stream.num_tokens)
    assert starts.sum() == len(lengths)
    assert (
        stream.read(-3, 2 * stream.num_tokens + 5).tolist()
        == np.resize(np.roll(tokens, 3), 2 * len(tokens) + 5).tolist()
    )
    packed = PackedStream(stream, length, seed)
    for epoch in range(2):
        places = [packed._window(epoch, index) for index in range(packed.num_rows)]
        predicted = [(start + 1 + n) % stream.num_tokens for start, count in places for n in range(count)]
        assert sorted(predicted) == list(range(stream.num_tokens))
        rows = packed.rows(range(epoch * packed.num_rows, (epoch + 1) * packed.num_rows))
        assert rows.num_targets.tolist() == [count for _, count in places]
        for row, ids, (start, _) in zip(rows.tokens, rows.document_ids, places, strict=True):
            at = (start + np.arange(length + 1)) % stream.num_tokens
            assert (row == tokens[at]).all() and (np.diff(ids) == starts[at][1:]).all()


def test_the_same_documents_are_held_out_whatever_is_added_and_any_fraction_is_cut_from_the_same_shards(
    tmp_path: Path,
) -> None:
    texts = [f"document {n} ends." for n in range(400)]
    few, many = written(tmp_path, texts[:200]), written(tmp_path, texts, "b")

    def held_out(documents: TokenizedDocuments, fraction: float) -> set[str]:
        sides = [bytes(whole(side)).decode().split(".")[:-1] for side in documents.split(fraction)]
        assert len(set(sides[0]) | set(sides[1])) == documents.num_documents == len(sides[0]) + len(sides[1])
        return {f"{text}." for text in sides[1]}

    for fraction in (0.1, 0.5):
        assert held_out(few, fraction) < held_out(many, fraction)
        assert held_out(many, fraction) == {text for text in texts if is_held_out(text, fraction)}
        assert abs(len(held_out(many, fraction)) / 400 - fraction) < 0.1
    assert held_out(many, 0.1) < held_out(many, 0.5)


def test_a_mixture_has_its_weights_exactly_and_each_source_in_its_own_order(tmp_path: Path) -> None:
    parts = [written(tmp_path, [letter * 40] * 9 + [letter * n for n in range(1, 30)], letter) for letter in "abc"]
    mixture = Documents(parts, 0.3, [Fraction("0.5"), Fraction("0.3"), Fraction("0.2")])
    batches = mixture.batches(5, 16, seed=3)
    places = [batches.place(number) for number in range(4000)]
    for first in range(0, 4000, 10):
        assert Counter(source for source, _ in places[first : first + 10]) == {0: 5, 1: 3, 2: 2}
    for source in range(3):
        numbers = [number for other, number in places if other == source]
        assert sorted(numbers) == list(range(len(numbers)))
    for step in range(200):
        rows = batches.rows(step)
        letters = [set(bytes(row.tolist()).decode()) for row in rows.tokens]
        assert letters == [{"abc"[source]} for source, _ in places[step * 5 : step * 5 + 5]]
    again = mixture.batches(5, 16, seed=3)
    assert (again.batch(77) == batches.batch(77)).all()
    assert (mixture.batches(5, 16, seed=4).batch(77) != batches.batch(77)).any()


def test_held_out_rows_are_all_or_evenly_spread(tmp_path: Path) -> None:
    parts = [written(tmp_path, [letter * 100 + str(n) for n in range(50)], letter) for letter in "ab"]
    documents = Documents(parts, 0.5, [Fraction(1), Fraction(1)])
    rows = documents.validation_windows(32)
    everything = [row[1 : 1 + count] for row, count in zip(rows[:], rows.rows(slice(None)).num_targets, strict=True)]
    assert np.concatenate(everything).tolist() == whole(documents.held_out[0]) + whole(documents.held_out[1])
    few = Documents(parts, 0.5, [Fraction(1), Fraction(1)], max_validation_tokens=320).validation_windows(32)
    assert len(few) == 10 and few.shape == (10, 33)
    letters = [set(map(chr, row)) & set("ab") for row in few[:]]
    assert {"a"} in letters[:5] and {"b"} in letters[5:]


def test_weights_and_sources_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path, ["one"])
    with pytest.raises(DataError, match=r"the 1 documents split into . and . for training and validation; add"):
        Documents([one], 0.1)
    many = written(tmp_path, [str(n) for n in range(100)], "b")
    message = "parts: these weights need a cycle of 100,000,001 rows; use weights with fewer digits"
    with pytest.raises(SpecError, match=message):
        Documents([many, many], 0.1, [Fraction("0.00000001"), Fraction(1)])


def test_every_epoch_is_cut_at_other_places(tmp_path: Path) -> None:
    """So that what is cut from its context in one epoch has it in another; and in another order."""
    stream, _ = written(tmp_path, ["abcdefghij" * n for n in range(2, 30)]).split(1e-18)
    packed = PackedStream(stream, 16, seed=3)
    epochs = [[packed._window(epoch, index)[0] for index in range(packed.num_rows)] for epoch in range(6)]
    assert len({starts[0] % stream.num_tokens for starts in epochs}) == 6
    assert len({min(starts) for starts in epochs}) == 6  # the offsets
    assert len({tuple(np.argsort(starts).tolist()) for starts in epochs}) == 6  # the orders
