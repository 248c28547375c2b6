"""Replay of BPE merges on a text, counting each pair when it is merged."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

Pair = tuple[str, str]


def merge_counts(tokenizer: HuggingFaceTokenizer, texts: Sequence[str], limit: int | None = None) -> list[int]:
    """Return how often each of the first `limit` pairs was adjacent when it was merged.

    On the training text of BPE (Sennrich et al. 2016), each pair is the most frequent when it is merged, so counts do
    not increase. On other texts they may. All overlapping pairs, as in "aaa", count.
    """
    model = tokenizer.definition["model"]
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    words = tokenizer.words(texts)
    symbols = {_symbols(word, prefix, suffix): count for word, count in words.items() if word}
    return replay(symbols, tokenizer.merges[:limit], prefix)


def replay(words: Mapping[tuple[str, ...], int], merges: Sequence[Pair], prefix: str = "") -> list[int]:
    """Return the count of each pair when it is merged. `words` maps the symbols of a word to the word's count.

    If two merges form the same token (ab + c, then a + bc), a later count can be larger. Symbols that continue a word
    have a prefix, which a merge drops from the second symbol.
    """
    symbols = [list(word) for word in words]
    counts = list(words.values())
    # each merge visits only the words that have the pair
    where: dict[Pair, set[int]] = defaultdict(set)  # indices of words that contain or contained a pair
    for n, word in enumerate(symbols):
        _note(where, word, n)
    totals: list[int] = []
    for pair in merges:
        total = 0
        # an earlier merge may have removed the pair from a word, which then counts 0
        for n in where.pop(pair, ()):
            total += counts[n] * sum(neighbours == pair for neighbours in pairwise(symbols[n]))
            symbols[n] = _merged(symbols[n], pair, pair[0] + pair[1].removeprefix(prefix))
            _note(where, symbols[n], n)
        totals.append(total)
    return totals


def _note(where: dict[Pair, set[int]], word: Sequence[str], n: int) -> None:
    for pair in pairwise(word):
        where[pair].add(n)


def _merged(word: Sequence[str], pair: Pair, token: str) -> list[str]:
    merged: list[str] = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) == pair:
            merged.append(token)
            position += 2
        else:
            merged.append(word[position])
            position += 1
    return merged


def _symbols(word: str, prefix: str, suffix: str) -> tuple[str, ...]:
    symbols = [word[0], *(prefix + character for character in word[1:])]
    symbols[-1] += suffix
    return tuple(symbols)
