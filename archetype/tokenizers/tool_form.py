"""Format in which a chat template writes tool calls: literal texts around names and arguments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

ID = "\ue000"  # placeholder in a literal for the id of a call, which is ignored
JSON_QUOTES = ('"', '"')


@dataclass(frozen=True)
class Pairs:
    """Literal texts around arguments that are written one by one as key and value, rather than as one object.

    Attributes:
        between: text between a key and its value.
        next_pair: text between a value and the next key.
        after_none: text between the name and the end of a call without arguments.
        next_after_none: text between the name of a call without arguments and the next name.
    """

    between: str
    next_pair: str
    after_none: str
    next_after_none: str | None


@dataclass(frozen=True)
class ToolForm:
    """Literal texts around the name and the arguments of a call.

    Attributes:
        opening: text from the end of the prompt to the first name, including an empty reasoning block if the template
            writes one.
        before_name: the part of `opening` that belongs to the call.
        before_arguments: text between the name and the arguments, or the first key of `pairs`.
        after: text from the last arguments to the end-of-turn token.
        next_name: text between arguments and the next name; None if a message can have only one call.
        pairs: format of arguments that are written one by one; None if they are one object.
        quotes: quotes around strings in the object; JSON's quotes unless the template has its own and bare keys.
        takes_text: whether messages pass arguments to the template as JSON text rather than as an object.
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
        pairs = self.pairs
        further = (
            self.quotes if pairs is None else (pairs.between, pairs.next_pair, pairs.after_none, pairs.next_after_none)
        )
        return [text for text in (self.opening, self.before_arguments, self.after, self.next_name, *further) if text]

    def until(self, ends: Sequence[str]) -> "ToolForm":
        """Cut off the last literal before the first of these end-of-text tokens."""

        def cut(text: str) -> str:
            # generation stops at the token, so the parser never sees what follows
            return text[: min((at for end in ends if end and (at := text.find(end)) >= 0), default=len(text))]

        pairs = self.pairs and replace(self.pairs, after_none=cut(self.pairs.after_none))
        return replace(self, after=cut(self.after), pairs=pairs)
