"""Token classification data: labelled words, whose labels are aligned to each word's first token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archetype.data.batches import Tokens
from archetype.data.records import LABEL, Form
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import start_of_text

FIELDS = {"tokens": Form("a list of words", (list,), (str,)), "labels": Form("a list of labels", (list,), LABEL)}
NO_CLASS = -100  # label of tokens that the loss ignores
Labelled = tuple[Tokens, Tokens]  # token ids and class indices (or NO_CLASS), both (T,)


def wrong_words(record: Mapping[str, Any]) -> str:
    """Return the fault of a record; empty for a valid record."""
    words = record["tokens"]
    if not all(words) or not words:
        return "tokens has no words, or contains an empty word"
    return "" if len(record["labels"]) == len(words) else f"has {len(words)} tokens and {len(record['labels'])} labels"


def labelled_rows(
    records: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, longest: int, class_ids: Mapping[str, int]
) -> tuple[list[Labelled], int]:
    """Tokenize the words of each record as a text with special tokens, truncated to `longest` tokens, with labels.

    Returns:
        Rows of token ids and class indices, and the number of truncated rows.
    """
    rows, num_cut = [], 0
    num_special = len(tokenizer.add_special_tokens([]))
    for record in records:
        words = ids_of_words(tokenizer, record["tokens"])
        ids = [id for word in words for id in word]
        classes = [  # a word's label is predicted at its first token
            class_ids[str(label)] if index == 0 else NO_CLASS
            for word, label in zip(words, record["labels"], strict=True)
            for index in range(len(word))
        ]
        if not ids:
            raise DataError("data.examples", f"the text of {record['tokens']!r:.40} has no token", "remove it")
        num_cut += len(ids) > longest - num_special
        ids, classes = ids[: longest - num_special], classes[: longest - num_special]
        row = tokenizer.add_special_tokens(ids)
        # special tokens before the text, which shift the classes
        before = start_of_text(row, ids)
        whole = [NO_CLASS] * before + classes + [NO_CLASS] * (len(row) - before - len(ids))
        rows.append((np.array(row, dtype=np.int32), np.array(whole, dtype=np.int32)))
    return rows, num_cut


def ids_of_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each word. Joined, they equal the text's ids if the tokenizer splits at spaces."""
    spaced = [tokenizer.encode(word if index == 0 else f" {word}") for index, word in enumerate(words)]
    alone = [tokenizer.encode(word) for word in words]  # for tokenizers that add a space before each word
    joined = [id for word in alone for id in word]
    return alone if joined == tokenizer.encode(" ".join(words)) else spaced
