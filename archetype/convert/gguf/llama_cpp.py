"""Tokenizers of llama.cpp (src/llama-vocab.cpp) for the vocabulary of a GGUF file.

They may differ from the original library's tokenizers, so exports are compared with them.
"""

import re
import unicodedata
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

from archetype.convert.gguf.pretokenizers import CLOSE, IGNORE_MERGES, MASK, MASK_TAKES_SPACES, llama_cpp_cuts
from archetype.convert.gguf.vocabulary import SPACE, Vocabulary, bytes_of, no_form
from archetype.errors import DataError, Notice
from archetype.tokenizers.charsmap import Charsmap
from archetype.tokenizers.hugging_face import byte_of_character
from archetype.tokenizers.same_ids import ALLOW, awkward_cases
from archetype.tokenizers.sentencepiece import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from archetype.tokenizers.tokenizer import Tokenizer

SHOWN = 4  # ids that an error quotes
PENALTY = 10.0  # an unknown character scores this much less than the worst piece
SPACES = " \t\n\v\f\r"  # whitespace in C, which some special tokens strip on their left
CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def check_ids(tokenizer: Tokenizer, vocabulary: Vocabulary, allow_different: bool = False) -> None:
    """Compare the token ids of difficult texts with llama.cpp's ids.

    Args:
        vocabulary: the tokenizer's vocabulary in GGUF.
        allow_different: warn instead of refusing.

    Raises:
        DataError: llama.cpp tokenizes a text differently, or cannot tokenize it.

    Warns:
        Notice: llama.cpp tokenizes a text differently, and `allow_different` is set.
    """
    reader = LlamaCppTokenizer(vocabulary)
    if vocabulary.pre in CLOSE:
        cause = f"llama.cpp's pre-tokenizer {vocabulary.pre} cuts some words otherwise than the published one"
        report_difference(cause, allow_different)
    for text, ids in awkward_cases(tokenizer):
        try:
            read = reader.encode(text)
        except KeyError as byte:
            raise no_form(f"llama.cpp aborts on {text!r:.60}, since the vocabulary has no piece {byte}") from None
        if read != ids:
            report_difference(f"llama.cpp encodes {text!r:.60} differently: {_difference(read, ids)}", allow_different)
            return


def report_difference(cause: str, is_allowed: bool) -> None:
    """Warn about a difference between llama.cpp and the tokenizer, or refuse it."""
    if not is_allowed:
        raise DataError("tokenizer", cause, f"use --format hf, or {ALLOW}")
    warnings.warn(f"tokenizer: {cause}", Notice, stacklevel=3)


def _difference(read: list[int], ids: list[int]) -> str:
    first = next((n for n, pair in enumerate(zip(read, ids, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(read), len(ids)) if first is None else first
    shown = (", ".join(map(str, sequence[first : first + SHOWN])) or "none" for sequence in (read, ids))
    return f"from id {first + 1} on {next(shown)} instead of {next(shown)}"


class LlamaCppTokenizer:
    """Tokenizer that returns the same ids as llama.cpp.

    Args:
        vocabulary: byte-level BPE (gpt2), BPE of whole texts (gemma4), SentencePiece BPE (llama) or Unigram (t5),
            WordPiece (bert), or RWKV's (rwkv).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids = {token: id for id, token in enumerate(vocabulary.tokens)}
        self._takes_spaces = (MASK,) if vocabulary.pre in MASK_TAKES_SPACES else ()
        apart = (CONTROL, USER_DEFINED, UNKNOWN)
        special = [token for token, type in zip(vocabulary.tokens, vocabulary.types, strict=True) if type in apart]
        # longest first, as llama.cpp looks for them in a text
        self._special = sorted(filter(None, special), key=lambda token: -len(token.encode()))
        make: dict[str, Callable[[Vocabulary, dict[str, int]], _Model]] = {
            "gpt2": _ByteLevel,
            "gemma4": _SpacedBpe,
            "llama": _SentencePiece,
            "t5": _Unigram,
            "bert": _WordPiece,
            "rwkv": _LongestMatch,
        }
        self._model = make[vocabulary.model](vocabulary, self._ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Special tokens in the text are recognized, but none are added.

        Raises:
            KeyError: a byte has no piece in the vocabulary; llama.cpp would abort.
        """
        parts: list[str | int] = [text] if text else []
        for name in self._special:
            if name in text:
                parts = [piece for part in parts for piece in self._around(part, name)]
        ids: list[int] = []
        after_special = True
        for part in parts:
            ids += [part] if isinstance(part, int) else self._model.encode(part, after_special)
            after_special = isinstance(part, int)
        return ids

    def _around(self, part: str | int, name: str) -> list[str | int]:
        # replace each occurrence of the special token with its id
        if isinstance(part, int):
            return [part]
        first, *rest = part.split(name)
        pieces: list[str | int] = [first]
        for text in rest:
            pieces += [self._ids[name], text]
        if name in self._takes_spaces:
            stripped = [piece.rstrip(SPACES) if isinstance(piece, str) else piece for piece in pieces[:-1]]
            pieces = [*stripped, pieces[-1]]
        return [piece for piece in pieces if piece != ""]


class _Model(Protocol):
    def encode(self, text: str, after_special: bool) -> list[int]: ...


class _LongestMatch:
    """The longest token at each place, among all tokens, also control tokens and padding."""

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        self._ids = {bytes_of(token): id for token, id in ids.items()}
        self._longest = max(map(len, self._ids))

    def encode(self, text: str, after_special: bool) -> list[int]:
        data, at, chosen = text.encode(), 0, []
        while at < len(data):
            lengths = range(min(self._longest, len(data) - at), 0, -1)
            length = next(length for length in lengths if data[at : at + length] in self._ids)
            chosen.append(self._ids[data[at : at + length]])
            at += length
        return chosen


class _ByteLevel:
    """Byte-level BPE: split into words, map bytes to GPT-2's characters, merge pairs in order of rank."""

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Sequence, Split

        if (cuts := llama_cpp_cuts(vocabulary.pre)) is None:
            raise no_form(f"llama.cpp's pre-tokenizer {vocabulary.pre!r:.40} is not supported")
        self._ids, self._ignores_merges = ids, vocabulary.pre in IGNORE_MERGES
        self._split = Sequence([Split(Regex(cut), "isolated") for cut in cuts])
        self._alphabet = {byte: character for character, byte in byte_of_character().items()}
        self._ranks = _ranks(vocabulary)

    def encode(self, text: str, after_special: bool) -> list[int]:
        words = (word for word, _ in self._split.pre_tokenize_str(text))
        return [id for word in words for id in self._word("".join(self._alphabet[byte] for byte in word.encode()))]

    def _word(self, word: str) -> list[int]:
        if self._ignores_merges and word in self._ids:
            return [self._ids[word]]
        pieces = _merged(list(word), lambda left, right: self._ranks.get((left, right)))
        split = ([piece] if piece in self._ids else piece for piece in pieces)  # unknown pieces: their characters
        return [self._ids[part] for parts in split for part in parts if part in self._ids]


def _ranks(vocabulary: Vocabulary) -> dict[tuple[str, str], int]:
    # the first token of a merge may itself begin with a space, so the separator is searched from index 1 on
    pairs = ((merge[: merge.find(" ", 1)], merge[merge.find(" ", 1) + 1 :]) for merge in vocabulary.merges or ())
    ranks: dict[tuple[str, str], int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault(pair, rank)
    return ranks


def _with_bytes(pieces: list[str], ids: dict[str, int]) -> list[int]:
    # unknown pieces: those of their bytes
    known = ([piece] if piece in ids else [f"<0x{byte:02X}>" for byte in piece.encode()] for piece in pieces)
    return [ids[part] for parts in known for part in parts]


class _SpacedBpe:
    """BPE of characters: spaces become ▁, runs of newlines are apart, and unknown characters are bytes."""

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        self._ids, self._ranks = ids, _ranks(vocabulary)

    def encode(self, text: str, after_special: bool) -> list[int]:
        ids: list[int] = []
        for word in re.findall(r"[^\n]+|\n+", text.replace(" ", SPACE)):
            if word in self._ids and word[0] == "\n":
                ids.append(self._ids[word])
                continue
            pieces = _merged(list(word), lambda left, right: self._ranks.get((left, right)))
            ids += _with_bytes(pieces, self._ids)
        return ids


class _SentencePiece:
    """SentencePiece BPE: merge the pair whose piece has the best score; write unknown pieces as bytes."""

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        self._ids, self._scores = ids, vocabulary.scores or []
        self._adds_prefix = vocabulary.flags.get("add_space_prefix", True)

    def encode(self, text: str, after_special: bool) -> list[int]:
        text = (" " if self._adds_prefix and after_special else "") + text
        return _with_bytes(_merged(list(text.replace(" ", SPACE)), self._rank), self._ids)

    def _rank(self, left: str, right: str) -> float | None:
        id = self._ids.get(left + right)
        return None if id is None else -self._scores[id]


class _Unigram:
    """Unigram: the segmentation with the largest sum of scores, after SentencePiece's normalization."""

    # `best[i]` of the search: (sum of scores, start of the last piece, its id) for the first i bytes

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        flags, scores = vocabulary.flags, vocabulary.scores or []
        kinds = list(zip(vocabulary.tokens, vocabulary.types, scores, strict=True))
        self._unknown = vocabulary.special.get("unknown", 2)
        self._unknown_score = min((score for _, type, score in kinds if type == NORMAL), default=0.0) - PENALTY
        self._pieces = {
            token.encode(): (ids[token], 0.0 if type == USER_DEFINED else score)
            for token, type, score in kinds
            if type in (NORMAL, USER_DEFINED, UNUSED)
        }
        self._longest = max(map(len, self._pieces), default=0)
        self._charsmap = Charsmap(vocabulary.charsmap)
        self._adds_prefix = flags.get("add_space_prefix", False)
        self._joins_spaces = flags.get("remove_extra_whitespaces", False)

    def encode(self, text: str, after_special: bool) -> list[int]:
        data = self._normalized(text.encode())
        best: list[tuple[float, int, int]] = [(0.0, 0, self._unknown)]  # Viterbi search
        best += [(-float("inf"), 0, self._unknown)] * len(data)
        # pieces begin at characters: bytes 10xxxxxx continue one in UTF-8
        for start in (at for at in range(len(data)) if data[at] & 0xC0 != 0x80):
            character = next((at for at in range(start + 1, len(data)) if data[at] & 0xC0 != 0x80), len(data))
            ends = range(start + 1, min(start + self._longest, len(data)) + 1)
            candidates = [(end, *self._pieces[data[start:end]]) for end in ends if data[start:end] in self._pieces]
            # no piece is this single character, so it may become the unknown token
            if all(end != character for end, _, _ in candidates):
                candidates.append((character, self._unknown, self._unknown_score))
            for end, id, score in candidates:
                if best[start][0] + score > best[end][0]:
                    best[end] = (best[start][0] + score, start, id)
        ids: list[int] = []
        at = len(data)
        while at:
            _, at, id = best[at]
            if not (ids and ids[-1] == id == self._unknown):  # one id for a run of unknown characters
                ids.append(id)
        return ids[::-1]

    def _normalized(self, text: bytes) -> bytes:
        space, parts = SPACE.encode(), bytearray()
        prefixed, in_word, at = False, False, 0
        while at < len(text):
            character = next((end for end in range(at + 1, len(text)) if text[end] & 0xC0 != 0x80), len(text))
            written, at = self._charsmap.longest(text, at) or (text[at:character], character)
            for byte in written:
                if byte == ord(" "):
                    in_word = False
                    parts += b"" if self._joins_spaces else space
                    continue
                if not in_word and (self._joins_spaces or (self._adds_prefix and not prefixed)):
                    parts += space
                    prefixed = True
                in_word = True
                parts.append(byte)
        return bytes(parts)


class _WordPiece:
    """WordPiece: split at spaces and punctuation, then repeatedly take the longest piece that begins the rest."""

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        self._ids, self._unknown = ids, vocabulary.special.get("unknown", 100)
        self._lowercase = vocabulary.flags.get("normalizer.lowercase", True)
        self._strips_accents = vocabulary.flags.get("normalizer.strip_accents", self._lowercase)
        self._longest = max((len(token.encode()) for token in ids), default=0) + 1

    def encode(self, text: str, after_special: bool) -> list[int]:
        return [id for word in self._words(text) for id in self._word((SPACE + word).encode())]

    def _word(self, word: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(word):
            ends = range(min(len(word), start + self._longest), start, -1)
            end = next((end for end in ends if self._token(word[start:end]) is not None), None)
            if end is None:
                return [self._unknown]
            ids.append(self._ids[word[start:end].decode()])
            start = end
        return ids

    def _token(self, piece: bytes) -> int | None:
        return self._ids.get(piece.decode("utf-8", "replace"))

    def _words(self, text: str) -> list[str]:
        words = [""]
        for character in text:
            if self._strips_accents:  # llama.cpp keeps only the first character of the decomposition
                character = unicodedata.normalize("NFD", character)[0]
            category = unicodedata.category(character)
            if character.isspace() and not "\x1c" <= character <= "\x1f":
                words.append("")
            elif character in "\0\ufffd" or category in ("Cc", "Cf", "Co", "Cs"):
                continue
            elif category[0] != "M" or not self._strips_accents:
                written = character.lower()[:1] if self._lowercase else character
                mark = category[0] == "P" or (character < "\x7f" and category[0] == "S") or _is_chinese(ord(character))
                words[-1:] = [words[-1], written, ""] if mark else [words[-1] + written]
        return list(filter(None, words))


def _is_chinese(code: int) -> bool:
    return any(first <= code <= last for first, last in CHINESE)


def _merged(pieces: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge the pair of lowest rank (leftmost on ties) until no pair has a rank."""
    ranks = [rank(left, right) for left, right in pairwise(pieces)]
    while ranked := [(value, at) for at, value in enumerate(ranks) if value is not None]:
        _, at = min(ranked)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        # only the pairs that touch the merged piece have other ranks now
        first = max(at - 1, 0)
        ranks[first : at + 2] = [rank(left, right) for left, right in pairwise(pieces[first : at + 2])]
    return pieces
