"""What a block costs: its contents, and the norms that its wiring puts around them."""

from collections.abc import Callable

from archetype import spec
from archetype.cost.attention import CrossAttentionCost
from archetype.cost.formula import ZERO, Counts, Formula, prefixed
from archetype.cost.part import FeedForwardCost, MixerCost, NormCost, WiringCost
from archetype.cost.registry import cost_of
from archetype.cost.work import FLOAT32, StackWork, TrainingWork


class BlockCost:
    """What one block costs, by module.

    Args:
        block: the specification.
        d: d_model.
    """

    def __init__(self, block: spec.Block, d: Formula) -> None:
        self.block, self.d = block, d
        self.mixer = MixerCost.of(block.mixer, d)
        self.cross = CrossAttentionCost(block.cross_attention, d) if block.cross_attention else None
        self.feedforward = FeedForwardCost.of(block.feedforward, d)
        self.wiring = WiringCost.of(block.wiring, d)
        self.contents: dict[str, MixerCost | FeedForwardCost] = {"mixer": self.mixer}
        if self.cross is not None:
            self.contents["cross"] = self.cross
        if not isinstance(block.feedforward, spec.NoFeedForward):
            self.contents["feedforward"] = self.feedforward

    def parameters(self) -> Counts:
        """Parameters."""
        return self._parameters(lambda content: content.parameters())

    def active_parameters(self) -> Counts:
        """Parameters that one token meets."""
        return self._parameters(lambda content: content.active_parameters())

    def _parameters(self, of: Callable[[MixerCost | FeedForwardCost], Counts]) -> Counts:
        counts: Counts = {}
        for name, content in self.contents.items():
            norm, post_norm = self.wiring.parameters(name)
            counts |= {f"{name}_norm": norm} | prefixed(f"{name}.", of(content)) | {f"{name}_post_norm": post_norm}
        return counts

    def flops(self, work: StackWork) -> Counts:
        """FLOPs of one pass."""
        counts = prefixed("mixer.", self.mixer.flops(work))
        if self.cross is not None:
            counts |= prefixed("cross.", self.cross.flops(work))
        return counts | prefixed("feedforward.", self.feedforward.flops(work.tokens))

    def state(self, length: int, source: int) -> int:
        """Numbers in the state of one row with room for `length` tokens, which looks at `source` tokens."""
        return self.mixer.state(length) + (self.cross.state(source) if self.cross else 0)

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass."""
        dropout_masks = len(self.contents) * work.tokens * self.d.value * work.itemsize if self.block.dropout else 0
        contents = sum(content.saved_activations(work) for content in self.contents.values())
        return contents + self.wiring.saved_activations(len(self.contents), work) + dropout_masks


@cost_of(spec.PreNorm, spec.PostNorm, spec.OutputNorm)
class NormedResidualCost(WiringCost):
    """One norm for each content."""

    part: spec.PreNorm | spec.PostNorm | spec.OutputNorm | spec.SandwichNorm | spec.ParallelResidual

    def __init__(self, part: spec.PreNorm, d: Formula) -> None:
        super().__init__(part, d)
        self.norm = NormCost.of(part.norm, d)

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Of the one norm."""
        return self.norm.parameters(), ZERO

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """Of every norm."""
        return contents * self.norm.saved_activations(work.tokens)


@cost_of(spec.SandwichNorm)
class SandwichNormCost(NormedResidualCost):
    """Two norms for each content."""

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Of both norms."""
        return self.norm.parameters(), self.norm.parameters()

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """Of every norm."""
        return 2 * super().saved_activations(contents, work)


@cost_of(spec.ParallelResidual)
class ParallelResidualCost(NormedResidualCost):
    """Both contents, or the norms before them, read one vector."""

    part: spec.ParallelResidual

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Of a norm for each content, or of the mixer's norm alone."""
        shared = self.part.shared_norm and content == "feedforward"
        return ZERO if shared else self.norm.parameters(), ZERO

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """Of the norms, less one input where it is shared."""
        norm, shared_input = self.norm.saved_activations(work.tokens), work.tokens * self.d.value * FLOAT32
        if norm and not self.part.shared_norm:
            return 2 * norm - shared_input
        return norm - (shared_input if work.compute_dtype == "float32" else 0)


@cost_of(spec.Plain)
class PlainCost(WiringCost):
    """No norms."""

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """None."""
        return ZERO, ZERO

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """None."""
        return 0
