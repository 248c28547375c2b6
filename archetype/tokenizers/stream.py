"""Incremental decoding that never returns a part of a character."""

from collections.abc import Callable

TAIL = 8  # ids of context kept, so that a continuation is not decoded as the start of a text
REPLACEMENT = "\ufffd"  # `decode` writes it for bytes that do not form a character (yet)


class TextStream:
    """Decoder of one token at a time. The joined outputs of `push` and `finish` equal `decode` for all ids.

    A short window of tokens is decoded again with each new token. The text by which it grows is final unless it ends
    inside a character. The window starts at a token with text, so that a decoder's effects at the start of a text, such
    as dropping a space, do not recur in the middle. `tokenizers.decoders.DecodeStream` works in the same way for one
    library, but loses spaces where a decoder strips several, and fails on invalid runs of bytes.

    Args:
        decode: converts token ids to text.
        incomplete: whether the text after an id stays uncertain until an id for which this is false follows.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], incomplete: Callable[[int], bool] = lambda id: False
    ) -> None:
        self._decode = decode
        self._incomplete = incomplete
        self._window: list[int] = []
        self._num_returned = 0  # ids in the window whose text was returned
        self._text = ""  # their text

    def follow(self, ids: list[int]) -> None:
        """Continue the text of preceding ids, which is not returned. A space that follows is then not dropped."""
        tail = ids[-TAIL:]
        text = self._decode(tail)
        if text and not text.endswith(REPLACEMENT):
            self._window, self._num_returned, self._text = tail, len(tail), text

    def push(self, id: int) -> str:
        """Return the text that this token makes final; empty while a character is incomplete."""
        self._window.append(id)
        if self._incomplete(id):
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._text):
            return ""
        new = text[len(self._text) :]
        recent = self._window[self._num_returned :]
        recent_text = self._decode(recent)
        # the window may start at these tokens: alone they have the same text, or text that is not only spaces
        if recent_text == new or recent_text.strip():
            self._window, text = recent, recent_text
        self._num_returned, self._text = len(self._window), text
        return new

    def finish(self) -> str:
        return self._decode(self._window)[len(self._text) :]
