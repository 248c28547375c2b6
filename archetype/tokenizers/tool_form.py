"""The form in which a chat template writes calls of tools: the literal texts around their names and arguments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

ID = "\ue000"  # in a literal: where the id of a call is written, which is of no interest to a reader
JSON_QUOTES = ('"', '"')


@dataclass(frozen=True)
class Pairs:
    """Arguments that are written one by one, each as a key and a value, and not as one object.

    Attributes:
        between: a key and its value.
        next_pair: stands between a value and the key after it.
        after_none: stands between the name and the end of a call without arguments.
        next_after_none: stands between the name of a call without arguments and the next name.
    """

    between: str
    next_pair: str
    after_none: str
    next_after_none: str | None


@dataclass(frozen=True)
class ToolForm:
    """The literal texts around the name and the arguments of a call.

    Attributes:
        opening: from the end of the prompt to the name of the first call, with an empty thought where the template
            writes one.
        before_name: the part of it that belongs to the call.
        before_arguments: between the name and the arguments, or the first key of `pairs`.
        after: the last arguments, up to the token that ends the answer.
        next_name: between arguments and the name of the next call; None where a message has one call.
        pairs: how arguments are written one by one; None where they are one object.
        quotes: around the texts of the object; those of JSON unless the template has its own, and keys without any.
        takes_text: whether messages give the template a call's arguments as a JSON text, and not as an object.
    """

    opening: str
    before_name: str
    before_arguments: str
    after: str
    next_name: str | None
    pairs: Pairs | None = None
    quotes: tuple[str, str] = JSON_QUOTES
    takes_text: bool = False

    @property
    def literals(self) -> list[str]:
        """All of its texts."""
        pairs = self.pairs
        more = (
            self.quotes if pairs is None else (pairs.between, pairs.next_pair, pairs.after_none, pairs.next_after_none)
        )
        return [one for one in (self.opening, self.before_arguments, self.after, self.next_name, *more) if one]

    def until(self, ends: Sequence[str]) -> "ToolForm":
        """The same form, whose last literal stops before a token that ends a text.

        Args:
            ends: how such tokens are spelled.
        """

        def cut(text: str) -> str:
            return text[: min((place for end in ends if end and (place := text.find(end)) >= 0), default=len(text))]

        pairs = self.pairs and replace(self.pairs, after_none=cut(self.pairs.after_none))
        return replace(self, after=cut(self.after), pairs=pairs)
