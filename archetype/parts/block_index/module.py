"""Block index: scores of keys by a small attention, pooled by blocks, and the best blocks of each query."""

import math

from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.selection import EVERY_KEY, Choice, best_blocks, mean_divergence, of_blocks
from archetype.nn.symbolic import num_blocks
from archetype.parts.block_index import spec
from archetype.parts.lightning_index.module import LearnedIndex
from archetype.parts.pattern.scores import MASKED, at_least_float32, of_symbolic_length


@module_for(spec.BlockIndex)
class BlockIndex(LearnedIndex):
    """Select the blocks of keys with the largest pooled q_t k_s, and the blocks up to the query's own."""

    def __init__(self, index: spec.BlockIndex, place: Place, query_features: int) -> None:
        super().__init__(index, place, place.d_model)
        if index.own_projections:
            self.q_norm, self.k_norm = self.build_norm(), self.build_norm()

    def forward(
        self,
        x: Vectors,
        queries: Float[Tensor, "B T r"],
        allowed: Bool[Tensor, "b 1 t S"],
        context: ForwardContext,
        state: LayerState | None = None,
    ) -> Choice:
        x = x.detach()  # the index's loss must not train the model
        keys = self.rotated(self.heads(self.k(x), self.k_norm), context)  # (B, 1, T, P)
        keys = self.with_earlier(keys, x, context, state)  # (B, 1, S, P)
        if not (self.learns or self.leaves_out(keys)):  # the scores would change nothing
            return EVERY_KEY
        q = self.rotated(self.heads(self.q(x), self.q_norm), context)  # (B, H, T, P)
        return self.choose(q, keys, allowed, context)

    def choose(
        self,
        q: Float[Tensor, "B H T P"],
        keys: Float[Tensor, "B K S P"],
        allowed: Bool[Tensor, "b 1 t S"],
        context: ForwardContext,
    ) -> Choice:
        """Choose blocks for each query head; every key head serves H / K of them. The choice has no gradient."""
        size, count = self.spec.block, keys.shape[2]
        leaves_out = self.leaves_out(keys)
        if not (self.learns or leaves_out):
            return EVERY_KEY
        if not self.learns:
            q, keys = q.detach(), keys.detach()
        if keys.shape[1] > 1:
            (keys,) = of_symbolic_length(q, keys)
        # in float32, as transformers computes them: rounded products would select other blocks
        grouped = at_least_float32(q).unflatten(1, (keys.shape[1], -1)).flatten(2, 3)  # (B, K, G T, P)
        scores = (grouped @ at_least_float32(keys).transpose(2, 3)).view(*q.shape[:3], count)  # (B, H, T, S)
        blocks = self._pooled(scores, allowed)  # (B, H, T, blocks)
        chosen = None
        if leaves_out:
            of_spec = size, self.spec.top_blocks, self.spec.local_blocks
            selected = best_blocks(blocks, context.shared_positions, *of_spec)
            chosen = context.probe(self, "chosen", allowed & of_blocks(selected, size, count))
            blocks = blocks.masked_fill(~selected, MASKED)
        return Choice(chosen, self.spec.most_keys, blocks if self.learns else None)

    def loss(self, choice: Choice, attended: Float[Tensor, "B H T S"], context: ForwardContext) -> Float[Tensor, ""]:
        """Return KL(attended blocks || softmax of scores), averaged over queries that are not padding, and weighted."""
        assert choice.scores is not None
        log_weights = (choice.scores / math.sqrt(self.spec.head_dim)).log_softmax(-1)  # (B, H, T, blocks)
        target = self._blocks(attended, 0.0).sum(-1)
        return self.spec.loss_weight * mean_divergence(log_weights, target, context)

    def _pooled(
        self, scores: Float[Tensor, "B H T S"], allowed: Bool[Tensor, "b 1 t S"]
    ) -> Float[Tensor, "B H T blocks"]:
        # of the visible keys of each block; MASKED without any
        if self.spec.pooling == "max":
            return self._blocks(scores.masked_fill(~allowed, MASKED), MASKED).amax(-1)
        visible = self._blocks(allowed.to(scores.dtype), 0.0).sum(-1)  # (b, 1, t, blocks)
        total = self._blocks(scores.masked_fill(~allowed, 0.0), 0.0).sum(-1)
        return (total / visible.clamp(min=1)).masked_fill(visible == 0, MASKED)

    def _blocks(self, x: Float[Tensor, "b h t S"], fill: float) -> Float[Tensor, "b h t blocks block"]:
        size, count = self.spec.block, x.shape[3]
        blocks = num_blocks(count, size)
        return nn.functional.pad(x, (0, blocks * size - count), value=fill).unfold(3, size, size)
