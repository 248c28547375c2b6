"""GPT-2's byte-level alphabet: each of the 256 bytes as a printable character, so that any text is a string of them."""

from functools import cache


@cache
def byte_of_character() -> dict[str, int]:
    """The byte that each character of the alphabet stands for (Radford et al. 2019, as released with GPT-2).

    Printable bytes of Latin-1 stand for themselves; the others are numbered from U+0100.
    """
    themselves = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in sorted(themselves)} | {chr(256 + n): byte for n, byte in enumerate(others)}


def to_bytes(piece: str) -> bytes:
    """The bytes of a byte-level token; a piece that is not in the alphabet is ordinary text."""
    alphabet = byte_of_character()
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()
