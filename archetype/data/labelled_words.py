"""Texts as words with classes: the records of a file, and each word's class at its first token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archetype.data.batches import Tokens
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import start_of_text

FIELDS = {"tokens": "a list of words", "labels": "the class of each"}
NO_CLASS = -100  # of a token at which no class is said
Labelled = tuple[Tokens, Tokens]  # the tokens of a text, and the class of each, or NO_CLASS


def check_words(record: Mapping[str, Any], place: str) -> None:
    """Check that a record has words, and as many labels.

    Raises:
        DataError: it has not.
    """
    words, labels = (record[field] for field in FIELDS)
    if not (isinstance(words, list) and words and all(isinstance(word, str) and word for word in words)):
        raise DataError(place, "tokens is not a list of words", "fix the record")
    if not isinstance(labels, list) or len(labels) != len(words):
        raise DataError(place, f"{len(words)} tokens need as many labels", "fix the record")


def labelled_rows(
    records: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, longest: int, numbers: Mapping[str, int]
) -> list[Labelled]:
    """Each record's words as one text between its special tokens, cut to `longest`, and the class of each token.

    Raises:
        DataError: a text has no token.
    """
    rows = []
    around = len(tokenizer.add_special_tokens([]))
    for record in records:
        words = ids_of_words(tokenizer, record["tokens"])
        ids = [id for word in words for id in word]
        classes = [
            numbers[str(label)] if place == 0 else NO_CLASS
            for word, label in zip(words, record["labels"], strict=True)
            for place in range(len(word))
        ]
        if not ids:
            raise DataError("data.examples", f"the text of {record['tokens']!r:.40} has no token", "remove it")
        ids, classes = ids[: longest - around], classes[: longest - around]
        row = tokenizer.add_special_tokens(ids)
        before = start_of_text(row, ids)
        whole = [NO_CLASS] * before + classes + [NO_CLASS] * (len(row) - before - len(ids))
        rows.append((np.array(row, dtype=np.int32), np.array(whole, dtype=np.int32)))
    return rows


def ids_of_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The tokens of each word of a text, which together are those of the text where its tokenizer divides at spaces.

    A tokenizer that puts a space before every text is given each word alone.
    """
    spaced = [tokenizer.encode(word if place == 0 else f" {word}") for place, word in enumerate(words)]
    alone = [tokenizer.encode(word) for word in words]
    joined = [id for word in alone for id in word]
    return alone if joined == tokenizer.encode(" ".join(words)) else spaced
