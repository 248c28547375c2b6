"""The cost of a block: its contents, and the norms that its wiring puts around them."""

from archetype.cost.formula import ZERO, Counts, Formula, prefixed
from archetype.cost.registry import FeedForwardCost, MixerCost, NormCost, WiringCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.models.block import spec
from archetype.parts.attention.cost import CrossAttentionCost
from archetype.parts.feedforward.spec import NoFeedForward


class BlockCost:
    """The cost of one block, by module.

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
        if not isinstance(block.feedforward, NoFeedForward):
            self.contents["feedforward"] = self.feedforward

    def parameters(self, active: bool = False) -> Counts:
        """Parameters; of the active ones only those that one token meets."""
        counts: Counts = {}
        for name, content in self.contents.items():
            norm, post_norm = self.wiring.parameters(name)
            projections = prefixed(f"{name}.", content.active_parameters() if active else content.parameters())
            counts |= {f"{name}_norm": norm} | projections | {f"{name}_post_norm": post_norm}
        return counts

    def flops(self, work: Work) -> Counts:
        """FLOPs of one pass."""
        counts = prefixed("mixer.", self.mixer.flops(work))
        if self.cross is not None:
            counts |= prefixed("cross.", self.cross.flops(work))
        return counts | prefixed("feedforward.", self.feedforward.flops(work.tokens))

    def state(self, length: int, source: int) -> int:
        """Numbers in the state of one row with room for `length` tokens, which looks at `source` tokens."""
        return self.mixer.state(length) + (self.cross.state(source) if self.cross else 0)

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved for the backward pass; of dropout nothing, for its kernel draws the same numbers again."""
        contents = sum(content.saved_activations(work) for content in self.contents.values())
        return contents + self.wiring.saved_activations(len(self.contents), work)


@cost_of(spec.PreNorm, spec.PostNorm, spec.OutputNorm)
class NormedResidualCost(WiringCost):
    """One norm for each content."""

    norms_per_content = 1

    def __init__(self, part: spec.PreNorm, d: Formula) -> None:
        super().__init__(part, d)
        self.norm = NormCost.of(part.norm, d)

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Parameters of the first norm, and of all further ones."""
        norm = self.norm.parameters()
        return norm, norm * (self.norms_per_content - 1)

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """Bytes that autograd saves of each norm."""
        return contents * self.norms_per_content * self.norm.saved_activations(work.tokens)


@cost_of(spec.SandwichNorm)
class SandwichNormCost(NormedResidualCost):
    """A norm before and a norm after each content."""

    norms_per_content = 2


@cost_of(spec.ParallelResidual)
class ParallelResidualCost(NormedResidualCost):
    """Both contents, or the norms before them, read one vector."""

    part: spec.ParallelResidual

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Parameters of the first norm, and of all further ones: one for each content, or the mixer's alone."""
        return (ZERO, ZERO) if self.part.shared_norm and content == "feedforward" else super().parameters(content)

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """Bytes that autograd saves of the norms, less one input where it is shared."""
        norm, shared_input = self.norm.saved_activations(work.tokens), work.tokens * self.d.value * FLOAT32
        if norm and not self.part.shared_norm:
            return 2 * norm - shared_input
        return norm - (shared_input if work.compute_dtype == "float32" else 0)


@cost_of(spec.Plain)
class PlainCost(WiringCost):
    """The cost of a wiring without norms."""

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """No parameters."""
        return ZERO, ZERO

    def saved_activations(self, contents: int, work: TrainingWork) -> int:
        """No bytes."""
        return 0
