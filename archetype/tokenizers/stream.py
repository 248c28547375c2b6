"""Text that grows with each token, and never by half a character."""

from collections.abc import Callable

TAIL = 8  # ids of a text before, enough to be no start of a text
REPLACEMENT = "\ufffd"  # what `decode` writes for bytes that are not, or not yet, a character


class TextStream:
    """Decode one token at a time: all that `push` and `finish` return, joined, is what `decode` returns for all ids.

    A short window of tokens is decoded again with each new one, and what the text grew by is certain unless it ends
    within a character. The window starts at a token that has text of its own, so that what decoders do at the start of
    a text, such as dropping a space, does not happen again in its middle. `tokenizers.decoders.DecodeStream` works in
    the same way, for one library; it loses spaces where a decoder strips several, and fails on invalid runs of bytes.

    Args:
        decode: the text of token ids.
        incomplete: whether an id has no certain text until one follows for which this is false.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], incomplete: Callable[[int], bool] = lambda id: False
    ) -> None:
        self._decode = decode
        self._incomplete = incomplete
        self._window: list[int] = []
        self._num_returned = 0  # ids of the window whose text was returned
        self._text = ""  # of these

    def follow(self, ids: list[int]) -> None:
        """Go on from the text of other ids, which is not returned: a space between the two is then no first one.

        Args:
            ids: before those that will be pushed.
        """
        tail = ids[-TAIL:]
        text = self._decode(tail)
        if text and not text.endswith(REPLACEMENT):
            self._window, self._num_returned, self._text = tail, len(tail), text

    def push(self, id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        self._window.append(id)
        if self._incomplete(id):
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._text):
            return ""
        new = text[len(self._text) :]
        recent = self._window[self._num_returned :]
        recent_text = self._decode(recent)
        if recent_text == new or recent_text.strip():
            self._window, text = recent, recent_text
        self._num_returned, self._text = len(self._window), text
        return new

    def finish(self) -> str:
        """The text that is left at the end."""
        return self._decode(self._window)[len(self._text) :]
