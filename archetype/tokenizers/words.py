"""One id for each word and each punctuation mark, with <unk> for the rest, or with a vocabulary that grows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from archetype.errors import DataError
from archetype.tokenizers.files import Flag
from archetype.tokenizers.json_file import JSONTokenizer, TokenizerFile
from archetype.tokenizers.tokenizer import check_utf8, readable

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

UNKNOWN = "<unk>"
# a word keeps its apostrophes (don't); every other mark, and the end of a line, is a token of its own
PATTERN = r"<unk>|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}\p{M}\p{N}_]+)*|\n|[^\s\p{L}\p{M}\p{N}_]"
# Only marks that no word contains may touch their neighbours, so that the text splits again as it was.
NO_SPACE_BEFORE = frozenset(",.;:!?)]}…\n")
NO_SPACE_AFTER = frozenset("([{\n")


class WordFile(TokenizerFile):
    """The file of a word tokenizer."""

    words: Annotated[list[str], Field(description="a list of words")]
    growing: Flag = False


class WordTokenizer(JSONTokenizer):
    """The words of a vocabulary; spaces are not kept, line ends are.

    `encode(decode(ids)) == ids` for all ids of the vocabulary.

    Args:
        words: each once, the first being <unk>.
        growing: give an unknown word the next id, instead of <unk>'s; `vocab_size` then grows while encoding.
    """

    kind = "words"
    fields = WordFile

    def __init__(self, words: Iterable[str], growing: bool = False) -> None:
        self.words = list(words)
        self.growing = growing
        self._ids = {word: id for id, word in enumerate(self.words)}
        if self.words[:1] != [UNKNOWN]:
            raise DataError("words", f"do not start with {UNKNOWN}", f"put {UNKNOWN} first")
        if len(self._ids) != len(self.words):
            raise DataError("words", "a word occurs twice", "give each once")
        invalid = next((word for word in self.words if split(word) != [word]), None)
        if invalid is not None:
            raise DataError("words", f"{invalid!r} is not one word", "give words without spaces, and marks one by one")

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> Self:
        """The most frequent words of texts, ties by first occurrence; all of them without a `vocab_size`."""
        counts = Counter(word for text in texts for word in split(text))
        del counts[UNKNOWN]
        frequent = counts.most_common(None if vocab_size is None else vocab_size - 1)
        return cls([UNKNOWN, *(word for word, _ in frequent)])

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        text, before = "", "\n"
        for word in (self.words[id] for id in ids if 0 <= id < len(self.words)):
            text += word if before in NO_SPACE_AFTER or word in NO_SPACE_BEFORE else f" {word}"
            before = word
        return text

    def token(self, id: int) -> str:
        return readable(self.words[id]) if 0 <= id < len(self.words) else ""

    def _id(self, word: str) -> int:
        if word not in self._ids and self.growing:
            self._ids[word] = len(self.words)
            self.words.append(word)
        return self._ids.get(word, 0)


def split(text: str) -> list[str]:
    """The words, punctuation marks and line ends of a text."""
    return [word for word, _ in _splitter().pre_tokenize_str(check_utf8(text))]


@cache
def _splitter() -> "PreTokenizer":
    # Python's own expressions cannot name letters and combining marks, which many scripts need to keep a word whole
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    return Split(Regex(PATTERN), "removed", invert=True)


KINDS = (WordTokenizer,)
