"""What every tokenizer can do."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from archetype.errors import DataError
from archetype.tokenizers.stream import TextStream


class Tokenizer(ABC):
    """Text to ids and back.

    Attributes:
        bos: the id that starts a text, if there is one.
        eos: the ids that end a text.
        adds_bos: whether a prompt is to start with `bos`.
        reads_special: whether `encode` gives a special token that is spelled out its id.

    The first three are plain attributes, because a model folder's own configuration may override them.
    """

    bos: int | None = None
    eos: tuple[int, ...] = ()
    adds_bos: bool = False
    reads_special: bool = False

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is: bytes, characters, words, bpe, byte_bpe, sentencepiece, marian, tiktoken, unigram..."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of ids: the largest and one more."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """The tokens that stand for no text, by name."""
        return {}

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special tokens are added.

        A special token that is spelled out in the text is read as its own library reads it: a `tokenizer.json` gives
        its id; SentencePiece and tiktoken take it for ordinary text.

        Raises:
            DataError: the text holds something that this tokenizer cannot express.
        """

    def encode_target(self, text: str) -> list[int]:
        """The ids of a text in the language that is translated to, which may have pieces of its own."""
        return self.encode(text)

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are spelled out, as chat templates make them."""
        names = sorted(self.special_tokens, key=len, reverse=True)
        if self.reads_special or not names:
            return self.encode(text)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        known = self.special_tokens
        return [id for part in parts if part for id in ([known[part]] if part in known else self.encode(part))]

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        """The ids of a whole text between the special tokens that its file puts around one, such as [CLS] and [SEP]."""
        return list(ids)

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: special tokens, and ids without a token, are left out; invalid bytes become U+FFFD."""

    @abstractmethod
    def token(self, id: int) -> str:
        """One token for display: spaces as ▁, control characters escaped, parts of characters as <0xE2>."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the file, or files, from which `open_tokenizer` makes this tokenizer again, into an existing folder."""

    @abstractmethod
    def stream(self) -> TextStream:
        """A decoder that takes one id at a time."""


def check_utf8(text: str) -> str:
    """The text itself, if UTF-8 can hold it.

    Raises:
        DataError: it contains half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X})"
        raise DataError("text", found, "remove it, or read the text as UTF-8") from None
    return text
