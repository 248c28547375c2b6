"""How a mixer's work grows with the length n of a text, beside its projections, which take n d^2."""

from typing import NamedTuple, assert_never

from archetype import spec


class Complexity(NamedTuple):
    """Orders of growth; d is the width of what is mixed."""

    text: str  # of a whole text
    token: str  # of one more token
    state: str  # of what is remembered of a row


def mixer(part: spec.Mixer) -> Complexity:
    """The orders of a mixer."""
    match part:
        case spec.Attention(score="additive"):
            return Complexity("O(n^2 d)", "O(n d)", "O(n d)")
        case spec.Attention():
            return pattern(part.pattern)
        case spec.LatentAttention():
            return Complexity("O(n^2 d)", "O(n h C)", "O(n C)")
        case spec.RNN() | spec.LSTM() | spec.GRU():
            return Complexity("O(n d^2)", "O(d^2)", "O(d)")
        case spec.Mamba():
            return Complexity("O(n d Z)", "O(d Z)", "O(d Z)")
        case _:
            assert_never(part)


def pattern(part: spec.Pattern) -> Complexity:
    """The orders of attention by a pattern: W keys near a query, s a stride, c of each s a summary, g global tokens."""
    match part:
        case spec.Full():
            return Complexity("O(n^2 d)", "O(n d)", "O(n d)")
        case spec.Window():
            return Complexity("O(n W d)", "O(W d)", "O(W d)")
        case spec.Strided():
            return Complexity("O(n (s + n / s) d)", "O(n d)", "O(n d)")
        case spec.Fixed():
            return Complexity("O(n (s + c n / s) d)", "O(n d)", "O(n d)")
        case spec.GlobalWindow():
            return Complexity("O(n (W + g) d)", "O(n d)", "O(n d)")
        case spec.BigBird():
            return Complexity("O(n W d)", "O(n d)", "O(n d)")  # W: the window's, random and global blocks' positions
        case _:
            assert_never(part)
