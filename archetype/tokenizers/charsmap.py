"""SentencePiece's normalization rules, which replace the longest match found in a trie."""

import struct


class Charsmap:
    """Precompiled normalization rules of a SentencePiece model.

    The trie is a double array (Darts, S. Yata) of 32-bit units: the child of a node for a byte is at index XOR offset
    XOR byte, and a leaf's value is at index XOR offset. The replacements follow the trie as zero-terminated strings.

    Args:
        data: size of the trie in bytes, trie, and replacements; empty if there are no rules.
    """

    def __init__(self, data: bytes) -> None:
        size = struct.unpack_from("<I", data)[0] if data else 0
        self._units: tuple[int, ...] = struct.unpack_from(f"<{size // 4}I", data, 4) if data else ()
        self._replacements = data[4 + size :]

    def longest(self, text: bytes, start: int) -> tuple[bytes, int] | None:
        """Return the replacement for the longest match at `start` and the match's end; None if nothing matches."""
        replaced: tuple[bytes, int] | None = None
        node = self._children(0) if self._units else 0
        for end in range(start, len(text) if self._units else start):
            byte = text[end]
            node ^= byte
            unit = self._units[node]
            if byte == 0 or unit & (1 << 31 | 0xFF) != byte:
                # bits 0-7 and 31 hold the label that the parent's byte must equal
                break
            node = self._children(node)
            # bit 8: a match ends here
            if unit >> 8 & 1:
                first = self._units[node] & (1 << 31) - 1
                replaced = self._replacements[first : self._replacements.index(0, first)], end + 1
        return replaced

    def replaced(self, text: str) -> str:
        # from left to right, byte by byte where no rule matches
        data, parts, position = text.encode(), bytearray(), 0
        while position < len(data):
            written, position = self.longest(data, position) or (data[position : position + 1], position + 1)
            parts += written
        return parts.decode()

    def _children(self, node: int) -> int:
        unit = self._units[node]
        return node ^ (unit >> 10) << ((unit & 1 << 9) >> 6)
