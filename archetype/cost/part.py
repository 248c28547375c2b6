"""What the cost of each role has to answer: of a mixer, a feed-forward part, a norm, a wiring.

Parameters and FLOPs are formulas, by module. State and saved activations are plain numbers.

Saved activations are the bytes that autograd keeps from the forward pass until the backward pass has used them. They
are counted for this package's own modules, tensor by tensor: of every matrix product its input, once for all that read
it; of every activation function its input, or its output where the derivative is a function of that; of every product
both factors. In bfloat16 (autocast) products and activations take two bytes, norms and the residual stream four, and
every projection has an input of its own, cast for it. Recurrent cells and scans are kernels' own affair: what is
counted for them is what a kernel must keep at least.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from archetype.cost.formula import Counts, Formula
from archetype.cost.registry import PartCost
from archetype.cost.work import StackWork, TrainingWork


class Complexity(NamedTuple):
    """Orders of growth, beside the projections, which take O(T D^2) for a text."""

    text: str  # of a whole text
    token: str  # of one more token
    state: str  # of the state of one row


class MixerCost(PartCost, ABC):
    """What a mixer costs."""

    complexity: Complexity
    differs_by_layer = False  # whether equal mixers of two layers compute other pairs

    @abstractmethod
    def parameters(self) -> Counts:
        """Parameters, by projection."""

    def active_parameters(self) -> Counts:
        """Parameters that one token meets, by projection."""
        return self.parameters()

    @abstractmethod
    def flops(self, work: StackWork) -> Counts:
        """FLOPs of one pass, by product."""

    @abstractmethod
    def state(self, length: int) -> int:
        """Numbers in the state of one row with room for `length` tokens."""

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass."""

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes saved once for all layers of a stack, such as a table of angles, by what is shared."""
        return {}


class FeedForwardCost(PartCost, ABC):
    """What a feed-forward part costs."""

    @abstractmethod
    def parameters(self) -> Counts:
        """Parameters, by projection."""

    def active_parameters(self) -> Counts:
        """Parameters that one token meets, by projection."""
        return self.parameters()

    @abstractmethod
    def flops(self, tokens: Formula) -> Counts:
        """FLOPs of some tokens, by projection."""

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass."""


class NormCost(PartCost, ABC):
    """What a norm costs; its width is the number of features that are normalized."""

    @abstractmethod
    def parameters(self) -> Formula:
        """Parameters; stored statistics are none."""

    @abstractmethod
    def saved_activations(self, vectors: int) -> int:
        """Bytes saved of some vectors: input, statistics, and what the weight multiplies where that is a step apart."""


class WiringCost(PartCost, ABC):
    """What the norms around a block's contents cost."""

    @abstractmethod
    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Parameters of the norm that is called after a content, such as `mixer`, and of its second one."""

    @abstractmethod
    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """Bytes saved by the norms around so many contents, less what contents share of their inputs."""


def linear(inputs: Formula, outputs: Formula, bias: bool = False) -> Formula:
    """Parameters of a projection."""
    return inputs * outputs + outputs * bias
