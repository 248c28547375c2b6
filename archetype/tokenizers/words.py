"""One id for each word and each punctuation mark, with <unk> for the rest, or with a vocabulary that grows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from archetype.errors import DataError
from archetype.tokenizers.display import readable
from archetype.tokenizers.plain import PlainTokenizer
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import check_utf8

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

UNKNOWN = "<unk>"
# a word keeps its apostrophes (don't); every other mark, and the end of a line, is a token of its own
PATTERN = r"<unk>|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}\p{M}\p{N}_]+)*|\n|[^\s\p{L}\p{M}\p{N}_]"
# Only marks that no word contains may touch their neighbours, so that the text splits again as it was.
NO_SPACE_BEFORE = frozenset(",.;:!?)]}…\n")
NO_SPACE_AFTER = frozenset("([{\n")


class WordTokenizer(PlainTokenizer):
    """The words of a vocabulary; spaces are not kept, line ends are.

    `encode(decode(ids)) == ids` for all ids of the vocabulary.

    Args:
        words: each once, the first being <unk>.
        growing: give an unknown word the next id, instead of <unk>'s; `vocab_size` then grows while encoding.
    """

    def __init__(self, words: Iterable[str], growing: bool = False) -> None:
        self._words = list(words)
        self.growing = growing
        self._ids = {word: id for id, word in enumerate(self._words)}
        if self._words[:1] != [UNKNOWN]:
            raise DataError("words", f"do not start with {UNKNOWN}", f"put {UNKNOWN} first")
        if len(self._ids) != len(self._words):
            raise DataError("words", "a word occurs twice", "give each once")
        odd = next((word for word in self._words if split(word) != [word]), None)
        if odd is not None:
            raise DataError("words", f"{odd!r} is not one word", "give words without spaces, and marks one by one")

    @classmethod
    def of_texts(cls, texts: Iterable[str], vocab_size: int | None = None, growing: bool = False) -> Self:
        """The most frequent words of texts, ties by first occurrence; all of them without a `vocab_size`."""
        counts = Counter(word for text in texts for word in split(text))
        del counts[UNKNOWN]
        kept = counts.most_common(None if vocab_size is None else vocab_size - 1)
        return cls([UNKNOWN, *(word for word, _ in kept)], growing)

    @property
    def kind(self) -> str:
        return "words"

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        stream = self.stream()
        return "".join(map(stream.push, ids))

    def token(self, id: int) -> str:
        return readable(self.word(id) or "")

    def stream(self) -> TextStream:
        return _JoinedWords(self)

    def word(self, id: int) -> str | None:
        """The word of an id, or None where there is none."""
        return self._words[id] if 0 <= id < len(self._words) else None

    def contents(self) -> dict[str, Any]:
        return {"growing": self.growing, "words": self._words}

    @classmethod
    def from_contents(cls, contents: Mapping[str, Any]) -> Self:
        words, growing = contents.get("words"), contents.get("growing", False)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError("words", "is not a list of words", "give a list of strings")
        if not isinstance(growing, bool):
            raise DataError("growing", f"{growing!r} is neither true nor false", "use true or false")
        return cls(words, growing)

    def _id(self, word: str) -> int:
        if word not in self._ids and self.growing:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids.get(word, 0)


class _JoinedWords(TextStream):
    """Words with spaces between them, save around punctuation and line ends."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: str | None = None

    def push(self, id: int) -> str:
        word = self._tokenizer.word(id)
        if word is None:
            return ""
        close = self._before is None or self._before in NO_SPACE_AFTER or word in NO_SPACE_BEFORE
        self._before = word
        return word if close else f" {word}"

    def finish(self) -> str:
        return ""


def split(text: str) -> list[str]:
    """The words, punctuation marks and line ends of a text."""
    return [word for word, _ in _splitter().pre_tokenize_str(check_utf8(text))]


@cache
def _splitter() -> "PreTokenizer":
    # Python's own expressions cannot name letters and combining marks, which many scripts need to keep a word whole
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    return Split(Regex(PATTERN), "removed", invert=True)
