"""Tokenizer for words and punctuation marks, with <unk> for unknown words or a growing vocabulary."""

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
# apostrophes belong to words (don't); every other mark and each line break is a token
PATTERN = r"<unk>|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}\p{M}\p{N}_]+)*|\n|[^\s\p{L}\p{M}\p{N}_]"
# Marks that attach to their neighbours when decoding; no word contains them, so the text splits again in the same way.
NO_SPACE_BEFORE = frozenset(",.;:!?)]}…\n")
NO_SPACE_AFTER = frozenset("([{\n")


class WordFile(TokenizerFile):
    words: Annotated[list[str], Field(description="a list of words")]
    growing: Flag = False


class WordTokenizer(JSONTokenizer):
    """Tokenizer for words. Line breaks are kept, but spaces are not.

    `encode(decode(ids)) == ids` for all ids in the vocabulary.

    Args:
        words: distinct words, starting with <unk>.
        growing: whether unknown words get new ids instead of <unk>, so that `vocab_size` grows while encoding.
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
            raise DataError("words", "a word occurs twice", "list each once")
        invalid = next((word for word in self.words if split(word) != [word]), None)
        if invalid is not None:
            raise DataError("words", f"{invalid!r} is not one word", "list words without spaces, and marks one by one")

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> Self:
        # the most frequent words, ties in order of occurrence; all words without a `vocab_size`
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
    return [word for word, _ in _splitter().pre_tokenize_str(check_utf8(text))]


@cache
def _splitter() -> "PreTokenizer":
    # Python's `re` cannot match letters with combining marks, which keep words whole in many scripts
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    return Split(Regex(PATTERN), "removed", invert=True)


KINDS = (WordTokenizer,)
