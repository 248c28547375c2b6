"""Tokens in a form to read: one line, spaces visible, broken characters as their bytes."""

SPACE = "▁"  # as SentencePiece shows it


def readable(piece: str | bytes) -> str:
    r"""A token's text, or its bytes, for display.

    >>> readable(b" caf\xc3")
    '▁caf<0xC3>'
    """
    if isinstance(piece, bytes):
        piece = piece.decode("utf-8", "surrogateescape")
    return "".join(map(_shown, piece))


def _shown(character: str) -> str:
    if character == " ":
        return SPACE
    if "\udc80" <= character <= "\udcff":
        return f"<0x{ord(character) - 0xDC00:02X}>"
    return character if character.isprintable() else character.encode("unicode_escape").decode()
