"""Text that grows with each token, and never by half a character."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable


class TextStream(ABC):
    """Decodes one token at a time: all that `push` and `finish` return, joined, is what `decode` gives for all ids."""

    @abstractmethod
    def push(self, id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""

    @abstractmethod
    def finish(self) -> str:
        """What is left at the end."""


class TextByToken(TextStream):
    """For tokens that are whole characters.

    Args:
        text_of: the text of an id; empty where it has none.
    """

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of

    def push(self, id: int) -> str:
        return self._text_of(id)

    def finish(self) -> str:
        return ""


class TextByBytes(TextStream):
    """For tokens that are bytes of UTF-8, which may end within a character.

    Args:
        bytes_of: the bytes of an id; empty where it has none.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._bytes_of(id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
