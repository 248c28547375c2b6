"""Specification of learned factors of features."""

from archetype.spec.base import Flag, Positive, Spec


class Gain(Spec):
    """Learned factor of each feature (nGPT, Loshchilov 2024, section 2.6).

    The stored parameter starts at `stored` and is multiplied by `init` / `stored`, which sets its effective learning
    rate. With `squared`, the factor is the square of such a product (Dory).

    Attributes:
        init: initial factor.
        stored: initial value of the stored parameters.
        squared: whether the factor is a square.
    """

    init: Positive = 1.0
    stored: Positive = 1.0
    squared: Flag = False

    @property
    def scale(self) -> float:
        """Constant that multiplies the stored numbers."""
        return (self.init**0.5 if self.squared else self.init) / self.stored
