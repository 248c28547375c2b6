"""One-line errors with place, cause and remedy, and helpers for their text."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_LINE = 300  # characters of a line on a terminal
MAX_MESSAGE = MAX_LINE - len("archetype: ")


class ArchetypeError(Exception):
    """A mistake that the user can fix.

    Args:
        place: file and field, option, or tensor name.
        cause: what is wrong.
        remedy: what to do; empty if the cause implies it.
    """

    def __init__(self, place: str, cause: str, remedy: str = "") -> None:
        super().__init__(place, cause, remedy)
        self.place = place
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [one_line(part, 2 * MAX_LINE) for part in (self.place, self.cause, self.remedy)]
        limit = max(map(len, parts))
        while sum(min(len(part), limit) for part in parts) > MAX_MESSAGE - len(": ; "):
            limit -= 1  # truncate the longest parts first
        place, cause, remedy = (shorten(part, limit) for part in parts)
        return (f"{place}: {cause}" if place else cause) + (f"; {remedy}" if remedy else "")

    def at(self, place: str) -> "ArchetypeError":
        """Return a copy with `place`, such as a file, in front of the place of the error."""
        inner = f"{place}: {self.place}" if self.place else place
        return type(self)(inner, self.cause, self.remedy)


@contextmanager
def errors_at(place: str, kind: type[ArchetypeError] = ArchetypeError) -> Iterator[None]:
    """Put `place`, such as a file, in front of the place of errors."""
    try:
        yield
    except kind as error:
        raise error.at(place) from None


class SpecError(ArchetypeError):
    """Invalid specification, recipe or setting."""


class SpecErrors(SpecError):
    """Several mistakes in one file, one per line. `place`, `cause` and `remedy` come from the first mistake."""

    def __init__(self, errors: "list[SpecError]") -> None:
        super().__init__(errors[0].place, errors[0].cause, errors[0].remedy)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))

    def __reduce__(self) -> "tuple[type[SpecErrors], tuple[list[SpecError]]]":
        return SpecErrors, (self.errors,)

    def at(self, place: str) -> "SpecErrors":
        return SpecErrors([SpecError(f"{place}: {error.place}", error.cause, error.remedy) for error in self.errors])


class CheckpointError(ArchetypeError):
    """Weights or a model folder that cannot be read or written."""


class DataError(ArchetypeError):
    """Text, tokens or a tokenizer that cannot be used."""


class WrongKind(SpecError, AttributeError):
    """A method that only other kinds of models have. Also an AttributeError, so that `hasattr` returns False."""


class Notice(UserWarning):
    """One-line warning about a file that was read nevertheless."""


class ChangedExtension(Notice):
    """An extension file was edited after a model or run had been made with its parts."""


class LeftOut(Notice):
    """Tensors of a checkpoint that the model does not use. They are kept and written back."""


class NotObeyed(Notice):
    """A file requests something that is not supported and was ignored."""


class ReadOtherwise(Notice):
    """A file is interpreted differently from the reference library."""


class UnknownFamily(Notice):
    """A model of an unregistered family was loaded. The message describes the inferred specification."""


class UnreadKeys(Notice):
    """Keys of a config.json that its family does not use."""


def shorten(text: str, limit: int) -> str:
    """Truncate a text in the middle to at most `limit` characters."""
    if len(text) <= limit:
        return text
    end = (limit - 3) // 3
    return f"{text[: limit - 3 - end]}...{text[len(text) - end :]}"


def one_line(text: str, limit: int | None = None) -> str:
    """Return a text in one printable line, truncated in the middle to at most `limit` characters."""
    # Control characters from a file must not reach the terminal.
    line = " ".join((text if limit is None else shorten(text, 4 * limit)).split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if limit is None else shorten(line, limit)


def enumeration(words: Iterable[str], conjunction: str = "and") -> str:
    """Join words as in a sentence: `a`, `a and b`, `a, b and c`."""
    words = list(words)
    return " ".join([", ".join(words[:-1]), conjunction, words[-1]]) if len(words) > 1 else "".join(words)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest valid name, or all of them."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(valid)}"
