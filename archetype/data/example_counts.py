"""Numbers of examples that were truncated or left out in training and evaluation."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class ExampleCounts:
    """Numbers of examples that were truncated or left out, by reason.

    Attributes:
        max_tokens: maximal number of tokens per example; None if nothing is truncated.
        num_cut: examples truncated to `max_tokens`.
        num_too_long: examples left out because they have more than `max_tokens` tokens.
        num_unanswered: conversations left out because no answer fits.
        num_empty: pairs left out because one side is empty.
        num_words: words left out because none of their tokens fits.
    """

    max_tokens: int | None = None
    num_cut: int = 0
    num_too_long: int = 0
    num_unanswered: int = 0
    num_empty: int = 0
    num_words: int = 0

    def __add__(self, other: "ExampleCounts") -> "ExampleCounts":
        counts = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return ExampleCounts(self.max_tokens, *(a + b for a, b in counts))

    def described(self, examples: str) -> str:
        """Append each count that is not 0 to `examples`, such as "1,000 texts"."""
        return ", ".join([examples, *self.reasons()])

    def lines(self, noun: str = "texts") -> list[str]:
        """Return the counts as a line for a report; empty if every example was used whole."""
        reasons = self.reasons()
        return [f"{noun}: {', '.join(reasons)}"] if reasons else []

    def reasons(self) -> list[str]:
        longest = f"{self.max_tokens or 0:,} tokens"
        counts = {
            f"truncated to {longest}": self.num_cut,
            f"left out (longer than {longest})": self.num_too_long,
            "left out (no answer within the limit)": self.num_unanswered,
            "left out (one side is empty)": self.num_empty,
            f"words left out (no token within the first {longest})": self.num_words,
        }
        return [f"{count:,} {reason}" for reason, count in counts.items() if count]


ALL_WHOLE = ExampleCounts()
