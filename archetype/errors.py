"""What went wrong, in one line: where, why, and what to do about it."""


class ArchetypeError(Exception):
    """A mistake that the user can mend.

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
        """The same error, seen from outside: `place` (a file, say) stands before its own place."""
        inner = f"{place}: {self.place}" if self.place else place
        return type(self)(inner, self.cause, self.remedy)


class SpecError(ArchetypeError):
    """A specification, recipe or setting that says something impossible."""


class CheckpointError(ArchetypeError):
    """Weights or a model folder that cannot be read or written as asked."""


class DataError(ArchetypeError):
    """Text, tokens or a tokenizer that cannot be used."""


class UnknownFamily(UserWarning):
    """A model was read whose family is not registered; the message says in one line what the reading rests on."""


def one_line(text: str) -> str:
    """Text to print: names out of a file may hold anything, and nothing of it may steer the terminal or fail."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
