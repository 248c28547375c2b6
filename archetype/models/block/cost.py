"""Cost of a block: its sublayers, norms and residual connections."""

from collections.abc import Sequence
from copy import copy
from typing import ClassVar

from archetype.cost.formula import ZERO, Counts, Formula, constant, prefixed, symbol
from archetype.cost.registry import (
    Complexity,
    FeedForwardCost,
    MixerCost,
    NormCost,
    ResidualCost,
    WiringCost,
    cost_of,
)
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.models.block import spec
from archetype.parts.attention.cost import CrossAttentionCost
from archetype.roles.residual import Residual, ResidualSum


class BlockCost:
    """Cost of one block, for each of its modules.

    Args:
        d: d_model.
        residual: residual wiring of the stack.
        vocabulary: vocabulary size V, for sublayers with a table indexed by token id.
    """

    def __init__(
        self, block: spec.Block, d: Formula, residual: Residual = ResidualSum(), vocabulary: Formula = ZERO
    ) -> None:
        self.block, self.d, self.vocabulary = block, d, vocabulary
        self.mixer = MixerCost.of(block.mixer, d)
        self.cross = CrossAttentionCost(block.cross_attention, d) if block.cross_attention else None
        self.feedforward = FeedForwardCost.of(block.feedforward, d)
        self.wiring, self.residual = WiringCost.of(block.wiring, d), ResidualCost.of(residual, d)
        self.layer = 0  # layer whose residual costs are counted
        self.contents: dict[str, MixerCost | FeedForwardCost] = {}
        if not block.mixer.is_absent:
            self.contents["mixer"] = self.mixer
        if self.cross is not None:
            self.contents["cross"] = self.cross
        if not block.feedforward.is_absent:
            self.contents["feedforward"] = self.feedforward

    def at(self, layer: int) -> "BlockCost":
        """Return the cost of the same block in another layer, where reading the residual stream may cost more."""
        cost = copy(self)
        cost.layer = layer
        return cost

    @property
    def streams(self) -> int:
        """Residual vectors per position that enter the block."""
        return self.residual.at(self.layer, 0).streams

    @property
    def residuals(self) -> dict[str, ResidualCost]:
        """Cost of each residual module of the block, by the module's name."""
        # a part that reads all residual streams needs no weights of theirs
        reads_all = "feedforward" if self.block.feedforward.reads_streams else None
        costs = {
            f"{name}_residual": self.residual.at(self.layer, index)
            for index, name in enumerate(self.contents)
            if name != reads_all
        }
        return {"residual": self.residual} if costs and self.residual.part.per_block else costs

    def parameters(self, active: bool = False) -> Counts:
        counts: Counts = {}
        residuals = self.residuals
        for name, content in self.contents.items():
            norm, post_norm = self.wiring.parameters(name)
            content_counts = dict(content.active_parameters() if active else content.parameters())
            # a table has one row per token id, which the content's specification does not know
            for table, features in content.tables().items():
                content_counts[table] = content_counts.get(table, ZERO) + self.vocabulary * features
            counts |= {f"{name}_norm": norm} | prefixed(f"{name}.", content_counts) | {f"{name}_post_norm": post_norm}
            if (residual := residuals.get(f"{name}_residual")) is not None:
                counts[f"{name}_residual"] = residual.parameters()
            counts |= prefixed(f"{name}_", self.wiring.further_parameters(name))
        if (residual := residuals.get("residual")) is not None:
            counts["residual"] = residual.parameters()
        counts["wiring"] = self.wiring.own_parameters()
        return counts | ({"output_scale": constant(1)} if self.block.output_scale else {})

    def flops(self, work: Work) -> Counts:
        counts = prefixed("mixer.", self.mixer.flops(work))
        if self.cross is not None:
            counts |= prefixed("cross.", self.cross.flops(work))
        counts |= prefixed("feedforward.", self.feedforward.flops(work.tokens))
        # a plain sum counts no FLOPs
        residuals = {name: residual.flops(work.tokens) for name, residual in self.residuals.items()}
        counts |= {name: flops for name, flops in residuals.items() if flops}
        for name in self.contents:
            norms = zip(("norm", "post_norm"), self.wiring.norm_flops(name, work.tokens), strict=True)
            counts |= {f"{name}_{norm}": flops for norm, flops in norms if flops}
            counts |= prefixed(f"{name}_", self.wiring.further_flops(name, work.tokens))
        if wiring := self.wiring.flops(work.tokens):
            counts |= {"wiring": wiring}
        return counts

    def state(self, length: int, source: int) -> int:
        # of one sequence with a source of `source` tokens
        per_token = self.mixer.state(length) + self.feedforward.state(length)
        return per_token + (self.cross.state(source) if self.cross else 0)

    def state_integers(self, length: int) -> int:
        return self.mixer.state_integers(length) + self.feedforward.state_integers(length)

    def recurrent_state(self, length: int) -> int:
        return self.mixer.recurrent_state(length) + self.feedforward.recurrent_state(length)

    def key_scales(self, length: int, source: int) -> int:
        return self.mixer.key_scales(length) + (self.cross.key_scales(source) if self.cross else 0)

    def saved_activations(self, work: TrainingWork) -> int:
        # dropout saves nothing: its kernel redraws the same numbers
        contents = sum(content.saved_activations(work) for content in self.contents.values())
        residuals = sum(residual.saved_activations(work) for residual in self.residuals.values())
        scaled = work.tokens * self.d.value * FLOAT32 if self.block.output_scale else 0
        return contents + residuals + scaled + self.wiring.saved_activations(tuple(self.contents), work)


cost_of(ResidualSum)(ResidualCost)


@cost_of(spec.NoMixer)
class NoMixerCost(MixerCost):
    """Zero cost of an absent mixer."""

    complexity = Complexity("O(1)", "O(1)", "O(1)")

    def flops(self, work: Work) -> Counts:
        return {}

    def saved_activations(self, work: TrainingWork) -> int:
        return 0


@cost_of(spec.PreNorm, spec.PostNorm, spec.OutputNorm)
class NormedResidualCost(WiringCost[spec.NormedWiring]):
    norms: ClassVar[tuple[str, ...]] = ("norm",)

    def norm_costs(self, content: str) -> list[NormCost]:
        # in the order of computation
        return [NormCost.of(self.part.norm_of(content, norm), self.d) for norm in self.norms]

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        norms = [norm.parameters() for norm in self.norm_costs(content)]
        return sum(norms[:1], start=ZERO), sum(norms[1:], start=ZERO)

    def norm_flops(self, content: str, tokens: Formula) -> tuple[Formula, Formula]:
        norms = [norm.flops(tokens) for norm in self.norm_costs(content)]
        return sum(norms[:1], start=ZERO), sum(norms[1:], start=ZERO)

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        return sum(norm.saved(work.tokens, work) for name in contents for norm in self.norm_costs(name))


@cost_of(spec.SandwichNorm)
class SandwichNormCost(NormedResidualCost):
    norms = ("norm", "post_norm")


@cost_of(spec.Laurel)
class LaurelCost(SandwichNormCost):
    """Cost of the norms of a sandwich, and of the low-rank path beside its mixer, which is normalized, too."""

    def __init__(self, part: spec.Laurel, d: Formula) -> None:
        super().__init__(part, d)
        self.rank = symbol("r", part.rank, part)
        self.path_norm = NormCost.of(part.norm if part.path_norm is None else part.path_norm, d)

    def further_parameters(self, content: str) -> Counts:
        path = 2 * self.d * self.rank + self.path_norm.parameters()
        return {"path": path} if content == "mixer" else {}

    def further_flops(self, content: str, tokens: Formula) -> Counts:
        path = 4 * tokens * self.d * self.rank + self.path_norm.flops(tokens)
        return {"path": path} if content == "mixer" else {}

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        # the narrow vector; the mixer saves h as well
        narrow = work.input_bytes(self.rank.value)
        return super().saved_activations(contents, work) + narrow + self.path_norm.saved(work.tokens, work)


@cost_of(spec.Interpolated)
class InterpolatedCost(SandwichNormCost):
    """Cost of two norms and a vector of rates for each sublayer."""

    def further_parameters(self, content: str) -> Counts:
        return {"rate": self.d}

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        # the steps, and the rates by which they are multiplied
        steps = len(contents) * (work.tokens + 1) * self.d.value * FLOAT32
        return super().saved_activations(contents, work) + steps


@cost_of(spec.ParallelResidual)
class ParallelResidualCost(NormedResidualCost):
    part: spec.ParallelResidual

    def norm_costs(self, content: str) -> list[NormCost]:
        # a shared norm counts for the mixer only
        return [] if self.part.shared_norm and content == "feedforward" else super().norm_costs(content)

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        # a shared input is saved once
        shared_input = work.tokens * self.d.value * FLOAT32
        saved = [norm.saved(work.tokens, work) for name in contents for norm in self.norm_costs(name)]
        if all(saved) and not self.part.shared_norm:
            return sum(saved) - shared_input
        # in float32 the norm and a content save the same tensor, which is counted once
        return max(saved) - (shared_input if work.compute_dtype == "float32" else 0)


@cost_of(spec.Plain)
class PlainCost(WiringCost):
    """Zero cost of a wiring without norms."""

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        return ZERO, ZERO

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        return 0
