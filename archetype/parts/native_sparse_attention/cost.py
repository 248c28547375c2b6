"""Cost of native sparse attention."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, cost_of
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work
from archetype.parts.attention.cost import AttentionCost
from archetype.parts.native_sparse_attention import spec
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.cost import PositionCost


@cost_of(spec.NativeSparseAttention)
class NativeSparseAttentionCost(MixerCost[spec.NativeSparseAttention]):
    """Cost of the projections, of the maps of blocks, and of two products over the pairs of each branch."""

    state_name = "KV cache and compressed keys"
    complexity = Complexity("O(T (T / s + j + W) H P)", "O((T / s + j + W) H P)", "O(T K P)")

    def __init__(self, part: spec.NativeSparseAttention, d: Formula) -> None:
        super().__init__(part, d)
        compression, selection = part.compression, part.selection
        self.heads, self.kv_heads = symbol("H", part.num_heads, part), symbol("K", part.kv_heads, part)
        self.head_dim = self.value_width = symbol("P", part.head_dim, part)
        if part.value_width != part.head_dim:
            self.value_width = symbol("Q", part.value_width, part)
        self.state_period = compression.step
        self.stride, self.size = symbol("s", compression.step, part), symbol("W", part.window, part)
        self.chosen = symbol("j", selection.top_blocks * selection.block, part)
        self.every = AttentionCost(part.attention(Full()), d)
        self.near = AttentionCost(part.attention(Window(size=part.window)), d)
        self.projections = {"q": Linear(d, self.heads * self.head_dim)}
        for branch in part.with_keys:
            self.projections[f"k.{branch}"] = Linear(d, self.kv_heads * self.head_dim)
            self.projections[f"v.{branch}"] = Linear(d, self.kv_heads * self.value_width)
        self.projections["gate"] = Linear(d, len(spec.BRANCHES) * self.heads)
        self.projections["o"] = Linear(self.heads * self.value_width, d)
        self.maps: dict[str, Linear] = {}
        if compression.hidden is not None:
            block, hidden = symbol("c", compression.block, part), symbol("w", compression.hidden, part)
            for name, features in (("k", self.head_dim), ("v", self.value_width)):
                self.maps[f"compress.{name}.up"] = Linear(block * features, hidden)
                self.maps[f"compress.{name}.down"] = Linear(hidden, features)
                self.vectors[f"compress.{name}.positions"] = block * features
        self.projections |= self.maps

    def flops(self, work: Work) -> Counts:
        length, part, compression = work.length.value, self.part, self.part.compression
        counts = self.projection_flops(work.tokens)
        new = 1 if work.phase == "decode" else part.blocks(length)
        vectors = work.rows * self.kv_heads * symbol("N", new, part)
        counts |= {name: each.flops(vectors) for name, each in self.maps.items()}
        blocks = work.queries * symbol("N", part.blocks(length), part)
        if work.attention == "allowed":
            ends = (length,) if work.phase == "decode" else range(1, length + 1)
            blocks = symbol("A", sum(map(compression.complete, ends)))
        most = min(self.chosen.value, length)
        pattern = self.every.pattern
        pairs = {
            "compressed": 2 * blocks,
            "selected": pattern.chosen_pair_flops(work, most) if most < length else pattern.pair_flops(work),
            "window": self.near.pattern.pair_flops(work),
        }
        for branch, each in pairs.items():
            counts[f"{branch}.scores"] = work.rows * self.heads * self.head_dim * each
            counts[f"{branch}.mixture"] = work.rows * self.heads * self.value_width * each
        return counts

    def state(self, length: int) -> int:
        vectors = length + self.part.blocks(length)
        if not self.part.shared_keys:
            vectors += min(self.part.window, length) + self.part.compression.block - 1
        return vectors * self._of_position

    def unread_state(self, length: int) -> int:
        near = self.part.window if self.part.shared_keys else 0
        return max(0, length - near - self.chosen.value) * self._of_position

    def recurrent_state(self, length: int) -> int:
        return 0

    @property
    def _of_position(self) -> int:
        # numbers of a key and a value of all heads
        return self.part.kv_heads * (self.part.head_dim + self.part.value_width)

    def saved_activations(self, work: TrainingWork) -> int:
        part, tokens, size = self.part, work.tokens, work.itemsize
        heads, compression, blocks = part.num_heads, part.compression, part.blocks(work.length)
        numbers = work.rows * blocks * self._of_position
        saved = blocks * compression.block * INT64 + numbers * size  # positions of blocks, and their keys and values
        if compression.hidden is not None:  # the inputs of both products, and that of GELU
            hidden = 4 * work.rows * blocks * part.kv_heads * compression.hidden
            saved += (numbers * compression.block + hidden) * size
        saved += tokens * heads * blocks * (FLOAT32 + size) + work.length * blocks  # softmax, weights, mask
        # the gates, two branches' outputs that no kernel saves, and the gated sum
        values = tokens * heads * part.value_width * size
        saved += work.input_bytes(self.d.value) + work.input_bytes(len(spec.BRANCHES) * heads) + 2 * values
        saved += self.every.pair_activations(work)
        if self.chosen.value < work.length:  # the mask as numbers
            saved += heads * tokens * work.length * size
        return saved + self.near.pair_activations(work)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        if self.part.position is None:
            return {}
        sizes = self.part.attention_sizes(self.d.value)
        return PositionCost.of(self.part.position, self.d).shared_activations(sizes.num_heads, sizes.rotary_dim, work)
