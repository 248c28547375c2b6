"""Errors in one line: where, why, and what to do about it."""

import difflib
from collections.abc import Iterable

MAX_LINE = 300  # characters of a line on a terminal
MAX_MESSAGE = MAX_LINE - len("archetype: ")


class ArchetypeError(Exception):
    """A mistake that the user can fix.

    Args:
        place: where it is: a file and field, an option, a tensor's name.
        cause: what is wrong there.
        remedy: what to do; empty where the cause says it.
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
            limit -= 1  # the longest are cut first
        place, cause, remedy = (shorten(part, limit) for part in parts)
        return (f"{place}: {cause}" if place else cause) + (f"; {remedy}" if remedy else "")

    def at(self, place: str) -> "ArchetypeError":
        """The same error with `place` (a file, say) before its own place."""
        inner = f"{place}: {self.place}" if self.place else place
        return type(self)(inner, self.cause, self.remedy)


class SpecError(ArchetypeError):
    """A specification, recipe or setting that is not possible."""


class SpecErrors(SpecError):
    """Several mistakes of one file, a line each.

    Args:
        errors: in the order of the file; the first also gives `place`, `cause` and `remedy`.
    """

    def __init__(self, errors: "list[SpecError]") -> None:
        super().__init__(errors[0].place, errors[0].cause, errors[0].remedy)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))

    def __reduce__(self) -> "tuple[type[SpecErrors], tuple[list[SpecError]]]":
        return SpecErrors, (self.errors,)

    def at(self, place: str) -> "SpecErrors":
        """The same errors with `place` before each one's own."""
        return SpecErrors([SpecError(f"{place}: {error.place}", error.cause, error.remedy) for error in self.errors])


class CheckpointError(ArchetypeError):
    """Weights or a model folder that cannot be read or written as asked."""


class DataError(ArchetypeError):
    """Text, tokens or a tokenizer that cannot be used."""


class WrongKind(SpecError, AttributeError):
    """A method that another kind of model has; `hasattr` is False for it."""


class Notice(UserWarning):
    """What somebody should know of a file that was read all the same; the message says it in one line."""


class ChangedExtension(Notice):
    """Something was made with parts of a file that has been edited since."""


class LeftOut(Notice):
    """Tensors of a checkpoint that the model has no use for, which are kept and written back."""


class NotObeyed(Notice):
    """A file asks for what is not done here."""


class ReadOtherwise(Notice):
    """A file is read otherwise than the reference library reads it."""


class UnknownFamily(Notice):
    """A model of a family that is not registered was loaded; the message says what was inferred."""


class UnreadKeys(Notice):
    """A config.json has keys that no class of its family reads, so that they change nothing."""


def shorten(text: str, limit: int) -> str:
    """The text, without its middle where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    end = (limit - 3) // 3
    return f"{text[: limit - 3 - end]}...{text[len(text) - end :]}"


def one_line(text: str, limit: int | None = None) -> str:
    """Make text safe to print in one line: control characters from a file must not reach the terminal.

    Args:
        text: anything.
        limit: the most characters; a longer text is shown without its middle (absent: no limit).
    """
    line = " ".join((text if limit is None else shorten(text, 4 * limit)).split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if limit is None else shorten(line, limit)


def enumeration(words: Iterable[str], conjunction: str = "and") -> str:
    """Join words as a sentence does: `a`, `a and b`, `a, b and c`; nothing of no words."""
    words = list(words)
    return " ".join([", ".join(words[:-1]), conjunction, words[-1]]) if len(words) > 1 else "".join(words)


def nearest(name: str, valid: Iterable[str]) -> str:
    """The remedy for a name that is none: the closest one, or all."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(valid)}"
