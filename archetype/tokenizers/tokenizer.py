"""The interface of all tokenizers."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from archetype.errors import DataError
from archetype.tokenizers.stream import TextStream

SPACE = "▁"  # how SentencePiece writes a space, and how tokens are shown


class EncodedPair(NamedTuple):
    """Two texts as one row.

    Attributes:
        ids: of all tokens.
        types: 0 for the tokens of the first text and 1 for the second's, or as the tokenizer's file says.
        places: of each token of the second text, its place in the row and its characters in the text, from and to.
    """

    ids: list[int]
    types: list[int]
    places: dict[int, tuple[int, int]]


class Tokenizer(ABC):
    """Text to token ids and back.

    A kind of tokenizer is a subclass, given to `register_tokenizer`. It needs `kind`, `vocab_size`, `encode`, `decode`,
    `token`, and either `files`, `open` and `save`, or the base class `JSONTokenizer`, which has these three. With a
    `train` of its own it can be trained: by `archetype tokenizer train --kind` and by a recipe that names it.

    Attributes:
        kind: bytes, characters, words, bpe, byte_bpe, sentencepiece, marian, tiktoken, unigram, ...
        files: patterns of the file names by which `open_tokenizer` recognizes this kind.
        other_names: patterns of further names that a file may have which is named itself, without a folder.
        needs_text: whether `train` needs a text that is not empty.
        learns_vocabulary: whether `train` chooses `vocab_size` tokens; otherwise the text, or nothing, decides.
        can_lowercase: whether `train` can make a tokenizer that turns every text to lower case.
        bos: the id that starts a text, if there is one.
        eos: the ids that end a text.
        adds_bos: whether a prompt is to start with `bos`.
        encodes_special_tokens: whether `encode` returns the id of a special token that is spelled out in a text.
        reaching: tokens that depend on what is beyond a line end; a text that holds one is not cut at line ends.

    `bos`, `eos` and `adds_bos` are plain attributes, for tokenizers that no file describes. What ends the texts that a
    model writes is said by its generation settings first: `LanguageModel.ends`.
    """

    kind: str = ""
    files: ClassVar[tuple[str, ...]] = ()
    other_names: ClassVar[tuple[str, ...]] = ()
    needs_text: ClassVar[bool] = True
    learns_vocabulary: ClassVar[bool] = True
    can_lowercase: ClassVar[bool] = False
    bos: int | None = None
    eos: tuple[int, ...] = ()
    adds_bos: bool = False
    encodes_special_tokens: bool = False
    reaching: tuple[str, ...] = ()

    @classmethod
    def open(cls, file: Path) -> "Tokenizer":
        """The tokenizer in a file, and in those beside it.

        Args:
            file: its name matches one of `files`.

        Raises:
            DataError: the file is damaged; names it and its fault.
        """
        raise NotImplementedError(f"{cls.__name__} has files but no `open`")

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> "Tokenizer":
        """A tokenizer made from texts; the same texts give the same tokenizer.

        Args:
            texts: what to train on, none of them empty.
            vocab_size: the number of ids to reach at most, where the caller gives one.
            lowercase: whether every text is turned to lower case first, then and later; needs `can_lowercase`.

        Raises:
            DataError: the kind cannot have that many ids.
        """
        raise NotImplementedError(f"a tokenizer of kind {cls.kind} is not trained here")

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of ids: the largest and one more."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """The tokens that stand for no text, by name."""
        return {}

    @property
    def symbols(self) -> list[str]:
        """Tokens of a text that are found in it before anything else, as the text spells them."""
        return []

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special tokens are added.

        A special token that is spelled out in the text is read as its own library reads it: a `tokenizer.json` gives
        its id; SentencePiece and tiktoken take it for ordinary text.

        Raises:
            DataError: the text holds something that this tokenizer cannot express.
        """

    def telling_texts(self) -> list[str]:
        """Texts of this tokenizer's own tokens by which another library's reading of its file is checked."""
        return []

    def encode_target(self, text: str) -> list[int]:
        """The ids of a text in the language that is translated to, which may have tokens of its own."""
        return self.encode(text)

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are spelled out, as chat templates write them."""
        special = self.special_tokens
        if self.encodes_special_tokens or not special:
            return self.encode(text)
        names = map(re.escape, sorted(special, key=len, reverse=True))
        parts = filter(None, re.split(f"({'|'.join(names)})", text))
        return [id for part in parts for id in ([special[part]] if part in special else self.encode(part))]

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        """The ids of a whole text between the special tokens that its file puts around one, such as [CLS] and [SEP]."""
        return [self.bos, *ids] if self.adds_bos and self.bos is not None else list(ids)

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a text that is to be continued, between its special tokens; of an empty one, bos if there is one.

        Raises:
            DataError: as `encode`.
        """
        return self.add_special_tokens(self.encode(check_utf8(text))) or ([] if self.bos is None else [self.bos])

    def encode_pair(self, first: str, second: str) -> EncodedPair:
        """Two texts as one row, with the special tokens that the tokenizer's file puts around and between them.

        Raises:
            DataError: its file does not say how.
        """
        cause = f"a tokenizer of kind {self.kind} does not say how two texts stand in one row"
        raise DataError("tokenizer", cause, "use a model with a tokenizer.json")

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: special tokens, and ids without a token, are left out; invalid bytes become U+FFFD."""

    @abstractmethod
    def token(self, id: int) -> str:
        """One token for display: spaces as ▁, control characters escaped, parts of characters as <0xE2>."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the file, or files, from which `open_tokenizer` makes this tokenizer again, into an existing folder."""

    def stream(self) -> TextStream:
        """A decoder that takes one id at a time."""
        return TextStream(self.decode)


def check_utf8(text: str) -> str:
    """The text itself, if UTF-8 can hold it.

    Raises:
        DataError: it contains half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        cause = f"character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X})"
        raise DataError("text", cause, "remove it, or read the text as UTF-8") from None
    return text


def readable(token: str | bytes) -> str:
    r"""A token's text, or its bytes, on one line for display.

    >>> readable(b" caf\xc3")
    '▁caf<0xC3>'
    """
    text = token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token
    return "".join(map(_readable_character, text))


def _readable_character(character: str) -> str:
    if character == " ":
        return SPACE
    if "\udc80" <= character <= "\udcff":  # a byte that is not part of a character
        return f"<0x{ord(character) - 0xDC00:02X}>"
    return character if character.isprintable() else character.encode("unicode_escape").decode()
