"""Interface of all tokenizers."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from archetype.errors import DataError
from archetype.tokenizers.stream import TextStream

SPACE = "▁"  # SentencePiece's symbol for a space, also used for display


class EncodedPair(NamedTuple):
    """Two texts, encoded as one sequence.

    Attributes:
        types: token types, usually 0 for the first text and 1 for the second.
        places: character range (start, end) in the second text, by position of the tokens of that text.
    """

    ids: list[int]
    types: list[int]
    places: dict[int, tuple[int, int]]


class Tokenizer(ABC):
    """Base class of all tokenizers, which convert text to token ids and back.

    A tokenizer kind is a subclass, registered with `register_tokenizer`. It needs `kind`, `vocab_size`, `encode`,
    `decode`, `token`, and either `files`, `open` and `save`, or the base class `JSONTokenizer`, which has these three.
    A kind that overrides `train` can be trained by `archetype tokenizer train --kind` and in recipes.

    Attributes:
        kind: bytes, characters, words, bpe, byte_bpe, sentencepiece, marian, tiktoken, unigram, ...
        files: file name patterns by which `open_tokenizer` recognizes this kind.
        other_names: additional file name patterns, for a file that is opened by its own name.
        needs_text: whether `train` needs text.
        learns_vocabulary: whether `train` chooses `vocab_size` tokens.
        can_lowercase: whether `train` can make a tokenizer that lowercases text.
        bos: id that starts a text; None if there is none.
        eos: ids that end a text.
        adds_bos: whether prompts start with `bos`.
        encodes_special_tokens: whether `encode` recognizes spelled-out special tokens.
        reaching: tokens whose match depends on text after a line break. Texts that contain one are not split at lines.

    `bos`, `eos` and `adds_bos` can be set if no file gives them. The ids that end generation come first from the
    generation settings: `LanguageModel.ends`.
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
        """Open the tokenizer in a file whose name matches one of `files`, and in the files next to it.

        Raises:
            DataError: a file is damaged.
        """
        raise NotImplementedError(f"{cls.__name__} has files but no `open`")

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> "Tokenizer":
        """Train a tokenizer. The same texts always give the same tokenizer.

        Args:
            texts: texts to train on, all nonempty.
            vocab_size: largest number of ids, if any.
            lowercase: whether texts are lowercased, in training and later; requires `can_lowercase`.

        Raises:
            DataError: the kind cannot have that many ids.
        """
        raise NotImplementedError(f"Archetype cannot train a tokenizer of kind {cls.kind}")

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids: the largest id plus one."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens by name. Decoding skips them."""
        return {}

    @property
    def symbols(self) -> list[str]:
        """Tokens that are matched in the text before tokenization, as spelled in the text."""
        return []

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text without added special tokens.

        A spelled-out special token is treated as in the reference library: a `tokenizer.json` returns its id, while
        SentencePiece and tiktoken treat it as ordinary text.

        Raises:
            DataError: this tokenizer cannot encode a part of the text.
        """

    def telling_texts(self) -> list[str]:
        """Return texts made of this tokenizer's tokens, for testing how another library reads its file."""
        return []

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of a text in the target language of translation, which may have separate tokens."""
        return self.encode(text)

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the token ids of a text, in which special tokens may be spelled out, as chat templates write them."""
        special = self.special_tokens
        if self.encodes_special_tokens or not special:
            return self.encode(text)
        names = map(re.escape, sorted(special, key=len, reverse=True))
        parts = filter(None, re.split(f"({'|'.join(names)})", text))
        return [id for part in parts for id in ([special[part]] if part in special else self.encode(part))]

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        """Add the special tokens that the tokenizer puts around a text, such as [CLS] and [SEP]."""
        return [self.bos, *ids] if self.adds_bos and self.bos is not None else list(ids)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of a prompt with its special tokens. An empty text gives only bos, if there is a bos.

        Raises:
            DataError: same as for `encode`.
        """
        return self.add_special_tokens(self.encode(check_utf8(text))) or ([] if self.bos is None else [self.bos])

    def encode_pair(self, first: str, second: str) -> EncodedPair:
        """Encode two texts as one sequence, with the special tokens around and between them.

        Raises:
            DataError: the tokenizer's file does not define pairs.
        """
        cause = f"a tokenizer of kind {self.kind} does not define how to encode a pair of texts"
        raise DataError("tokenizer", cause, "use a model with a tokenizer.json")

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids. Special and unknown ids are skipped, and invalid bytes become U+FFFD."""

    @abstractmethod
    def token(self, id: int) -> str:
        """Format a token for display: spaces as ▁, control characters escaped, parts of characters as <0xE2>."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files from which `open_tokenizer` restores this tokenizer into an existing folder."""

    def stream(self) -> TextStream:
        """Return an incremental decoder for this tokenizer."""
        return TextStream(self.decode)


def check_utf8(text: str) -> str:
    """Return the text if it can be encoded as UTF-8.

    Raises:
        DataError: the text contains an unpaired surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        cause = f"character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X})"
        raise DataError("text", cause, "remove it, or read the text as UTF-8") from None
    return text


def readable(token: str | bytes) -> str:
    r"""Return a token's text, or its bytes, on one line for display.

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
