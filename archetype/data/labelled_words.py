"""Texts as words with classes: the records of a file, and each word's class at its first token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archetype.data.batches import Tokens
from archetype.data.records import LABEL, Form
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import start_of_text

FIELDS = {"tokens": Form("a list of words", (list,), (str,)), "labels": Form("a list of labels", (list,), LABEL)}
NO_CLASS = -100  # of a token at which no class is said
Labelled = tuple[Tokens, Tokens]  # the tokens of a text, and the class of each, or NO_CLASS


def wrong_words(record: Mapping[str, Any]) -> str:
    """What is wrong with a record: no words, an empty one, or not as many labels; nothing where it is right."""
    words = record["tokens"]
    if not all(words) or not words:
        return "tokens has no words, or an empty one"
    return "" if len(record["labels"]) == len(words) else f"{len(words)} tokens need as many labels"


def labelled_rows(
    records: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, longest: int, numbers: Mapping[str, int]
) -> tuple[list[Labelled], int]:
    """Each record's words as one text between its special tokens, cut to `longest`, with the class of each token.

    Returns:
        the rows, and how many were cut.

    Raises:
        DataError: a text has no token.
    """
    rows, num_cut = [], 0
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
        num_cut += len(ids) > longest - around
        ids, classes = ids[: longest - around], classes[: longest - around]
        row = tokenizer.add_special_tokens(ids)
        before = start_of_text(row, ids)
        whole = [NO_CLASS] * before + classes + [NO_CLASS] * (len(row) - before - len(ids))
        rows.append((np.array(row, dtype=np.int32), np.array(whole, dtype=np.int32)))
    return rows, num_cut


def ids_of_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The tokens of each word of a text, which together are those of the text where its tokenizer divides at spaces.

    A tokenizer that puts a space before every text is given each word alone.
    """
    spaced = [tokenizer.encode(word if place == 0 else f" {word}") for place, word in enumerate(words)]
    alone = [tokenizer.encode(word) for word in words]
    joined = [id for word in alone for id in word]
    return alone if joined == tokenizer.encode(" ".join(words)) else spaced
