"""Specification of learned factors of features."""

from archetype.spec.base import Flag, Positive, Spec

__all__ = ["Gain"]


class Gain(Spec):
    """A learned factor of each feature (nGPT, Loshchilov 2024, section 2.6).

    The factor is stored as a number that begins at `stored`, and multiplied by `init` / `stored`, which sets how fast
    it is trained. With `squared` the factor is the square of a number that is stored so (Dory).

    Attributes:
        init: initial factor.
        stored: initial value of the stored numbers.
        squared: whether the factor is a square.
    """

    init: Positive = 1.0
    stored: Positive = 1.0
    squared: Flag = False

    @property
    def scale(self) -> float:
        """Constant that multiplies the stored numbers."""
        return (self.init**0.5 if self.squared else self.init) / self.stored
