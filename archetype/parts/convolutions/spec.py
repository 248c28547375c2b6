"""Short convolutions of the vectors inside a part."""

from archetype.spec.base import Flag, Size, Spec
from archetype.spec.errors import invalid


class Convolutions(Spec):
    """Short convolutions y_t + sum_i w_i y_{t-i} inside a part (Allen-Zhu 2025, canon layers; Inkling).

    Convolutions are depthwise, without bias or activation.

    Attributes:
        at: positions of the convolutions in the part.
        kernel: kernel size in positions, including the current token.
        residual: whether the input y_t is added to the convolution.
    """

    at: tuple[str, ...]
    kernel: Size = 4
    residual: Flag = True

    def check(self, causal: bool) -> None:
        """Call `invalid` for a stack whose positions see later ones, and for equal places."""
        if not causal:
            invalid("", "convolutions are causal", "remove it, or use a decoder")
        if len(set(self.at)) < max(len(self.at), 1):
            invalid("at", "is empty or lists a position twice", "list each position once, or remove convolutions")
