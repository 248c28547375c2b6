"""Choices of a transplant, as they are written on a command line."""

from collections.abc import Sequence

from archetype.errors import SpecError


def read_layers(text: str) -> list[int] | str:
    """Parse a list of layers such as 0-5,5,6-11, or the name of a selection method.

    Raises:
        SpecError: the text is not such a list.
    """
    if text.isalpha():
        return text
    layers: list[int] = []
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise SpecError(
                "--layers", f"{item.strip()!r:.40} is neither a layer nor a range", "write it like 0-5,5,6-11"
            )
        layers += range(int(first), int(last or first) + 1)
    return layers


def read_choices(texts: Sequence[str]) -> dict[str, str]:
    """Parse choices such as heads=mean.

    Raises:
        SpecError: a text is not SUBJECT=WAY, or a subject has two ways.
    """
    choices: dict[str, str] = {}
    for text in texts:
        subject, equals, way = text.partition("=")
        if not equals or not subject or not way:
            raise SpecError("--with", f"{text!r:.40} is not a choice", "write SUBJECT=WAY, such as heads=first")
        if subject in choices:
            raise SpecError(f"--with {subject}", f"is both {choices[subject]} and {way}", "choose one")
        choices[subject] = way
    return choices
