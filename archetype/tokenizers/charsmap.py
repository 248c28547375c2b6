"""SentencePiece's rules that normalize a text: the longest texts that are replaced, longest in a trie."""

import struct


class Charsmap:
    """A precompiled map of characters, as a model's file holds it.

    The trie is a double array (Darts, S. Yata): 32-bit units, the children of one at its own place XOR its offset XOR
    a byte, a leaf's value at its place XOR its offset. The replacements follow it, each ended by a zero.

    Args:
        data: the size of the trie in bytes, the trie, and the replacements; empty where nothing is replaced.
    """

    def __init__(self, data: bytes) -> None:
        size = struct.unpack_from("<I", data)[0] if data else 0
        self._units: tuple[int, ...] = struct.unpack_from(f"<{size // 4}I", data, 4) if data else ()
        self._replacements = data[4 + size :]

    def longest(self, text: bytes, start: int) -> tuple[bytes, int] | None:
        """The replacement of the longest text at `start` and where that text ends; None where nothing is replaced."""
        replaced: tuple[bytes, int] | None = None
        node = self._children(0) if self._units else 0
        for end in range(start, len(text) if self._units else start):
            byte = text[end]
            node ^= byte
            unit = self._units[node]
            if byte == 0 or unit & (1 << 31 | 0xFF) != byte:
                break
            node = self._children(node)
            if unit >> 8 & 1:
                first = self._units[node] & (1 << 31) - 1
                replaced = self._replacements[first : self._replacements.index(0, first)], end + 1
        return replaced

    def replaced(self, text: str) -> str:
        """A text with all replacements, from left to right."""
        data, parts, at = text.encode(), bytearray(), 0
        while at < len(data):
            written, at = self.longest(data, at) or (data[at : at + 1], at + 1)
            parts += written
        return parts.decode()

    def _children(self, node: int) -> int:
        unit = self._units[node]
        return node ^ (unit >> 10) << ((unit & 1 << 9) >> 6)
