"""Cost of learned factors of features."""

from archetype.cost.formula import ZERO, Formula
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.gain import spec


class GainCost:
    """Cost of one factor for each feature; zero without a gain."""

    def __init__(self, gain: spec.Gain | None, features: Formula) -> None:
        self.gain, self.features = gain, features

    def parameters(self) -> Formula:
        return ZERO if self.gain is None else self.features

    def saved_activations(self, vectors: int, work: TrainingWork) -> int:
        """Bytes saved for the backward pass of `vectors` vectors: the vectors and the factors."""
        if self.gain is None:
            return 0
        roots = FLOAT32 if self.gain.squared else 0
        return self.features.value * ((vectors + 1) * work.itemsize + roots)
