"""Errors in one line: where, why, and what to do about it."""


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
        text = f"{self.place}: {self.cause}" if self.place else self.cause
        if self.remedy:
            text += f"; {self.remedy}"
        return one_line(text)

    def at(self, place: str) -> "ArchetypeError":
        """The same error with `place` (a file, say) before its own place."""
        inner = f"{place}: {self.place}" if self.place else place
        return type(self)(inner, self.cause, self.remedy)


class SpecError(ArchetypeError):
    """A specification, recipe or setting that is not possible."""


class CheckpointError(ArchetypeError):
    """Weights or a model folder that cannot be read or written as asked."""


class DataError(ArchetypeError):
    """Text, tokens or a tokenizer that cannot be used."""


class UnknownFamily(UserWarning):
    """A model of a family that is not registered was loaded; the message says in one line what was inferred."""


MAX_LINE = 300  # characters


def one_line(text: str) -> str:
    """Make text safe to print in one line: control characters from a file must not reach the terminal.

    A long one is cut in its middle: it begins with the place and ends with the remedy.
    """
    if len(text) > 2 * MAX_LINE:
        text = f"{text[:MAX_LINE]} {text[-MAX_LINE:]}"
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    half = MAX_LINE // 2 - 3
    return line if len(line) <= MAX_LINE else f"{line[:half]} ... {line[-half:]}"
