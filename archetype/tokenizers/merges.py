"""The merges of BPE, replayed on a text: how often each pair occurred when its turn came."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

Pair = tuple[str, str]


def merge_counts(tokenizer: HuggingFaceTokenizer, texts: Sequence[str], limit: int | None = None) -> list[int]:
    """How often each of the first `limit` pairs stood side by side in the texts when it was merged.

    On the text that BPE was trained on (Sennrich et al. 2016) each count is the largest of its time, so the counts do
    not increase; on another text they may. Pairs that overlap, as in "aaa", all count.
    """
    model = tokenizer.definition["model"]
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    words = tokenizer.words(texts)
    symbols = {_symbols(word, prefix, suffix): count for word, count in words.items() if word}
    return replay(symbols, tokenizer.merges[:limit], prefix)


def replay(words: Mapping[tuple[str, ...], int], merges: Sequence[Pair], prefix: str = "") -> list[int]:
    """The count of each pair at its turn.

    Merges that make one token in two ways (ab + c, then a + bc) can let a later count rise.

    Args:
        words: the symbols of each different word, and how often the word occurs.
        merges: the pairs in order.
        prefix: what the model puts before symbols that continue a word; a merge drops the second one's.
    """
    symbols = [list(word) for word in words]
    counts = list(words.values())
    where: dict[Pair, set[int]] = defaultdict(set)  # the words that hold a pair, or have held it
    for n, word in enumerate(symbols):
        _note(where, word, n)
    totals: list[int] = []
    for pair in merges:
        total = 0
        for n in where.pop(pair, ()):
            total += counts[n] * sum(beside == pair for beside in pairwise(symbols[n]))
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
