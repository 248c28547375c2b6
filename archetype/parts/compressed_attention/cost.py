"""Cost of attention to a window and to pooled positions."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import Counts, Formula, prefixed, symbol
from archetype.cost.registry import Complexity, Linear, MixerCost, NormCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.compressed_attention import spec
from archetype.parts.position.cost import PositionCost


class PoolCost:
    """Cost of pooling positions to vectors of some features."""

    def __init__(self, part: spec.CompressedAttention, features: Formula, d: Formula) -> None:
        assert part.pooling is not None
        self.features, self.rate, self.overlaps = features, part.pooling.rate, part.pooling.overlap
        halves = 2 if self.overlaps else 1
        self.width, self.reach = halves * features, halves * self.rate
        self.projections = {"kv": Linear(d, self.width), "gate": Linear(d, self.width)}
        self.norm = NormCost.of(part.norm, features)
        self.stride = symbol("s", self.rate, part)

    def vectors(self) -> Counts:
        return {"offsets": self.stride * self.width, "norm": self.norm.parameters()}

    def state(self, length: int) -> int:
        # complete windows and the open one, and the projections that later windows need
        return (length // self.rate + 1) * self.features.value + 2 * self.width.value * (self.reach - 1)

    def saved_activations(self, work: TrainingWork) -> int:
        # both projections, the values gathered of them, beside the logits unless halves are joined, and the weights
        windows = work.rows * (work.length // self.rate)
        numbers = windows * self.reach * self.features.value
        gathered = numbers * work.itemsize * (1 if self.overlaps else 2) + numbers * FLOAT32
        gathered += work.tokens * 2 * self.width.value * work.itemsize
        return gathered + self.norm.saved_activations(windows)


@cost_of(spec.CompressedAttention)
class CompressedAttentionCost(MixerCost[spec.CompressedAttention]):
    """Cost of low-rank queries, one key head, pooled keys, and pairs of a query and a key that is seen."""

    state_name = "window and pooled keys"
    complexity = Complexity("O(T W H P)", "O(W H P)", "O(W P)")

    def __init__(self, part: spec.CompressedAttention, d: Formula) -> None:
        super().__init__(part, d)
        self.heads, self.head_dim = symbol("H", part.num_heads, part), symbol("P", part.head_dim, part)
        self.rank, self.groups = symbol("r", part.query_rank, part), symbol("g", part.groups, part)
        group_rank = symbol("r_g", part.group_rank, part)
        of_group = symbol("H", part.num_heads // part.groups, part) if part.groups > 1 else self.heads
        self.projections = {
            "q_down": Linear(d, self.rank),
            "q_up": Linear(self.rank, self.heads * self.head_dim),
            "kv": Linear(d, self.head_dim),
            "o_down": Linear(of_group * self.head_dim, self.groups * group_rank),
            "o_up": Linear(self.groups * group_rank, d),
        }
        self.norms = {
            "q_norm": NormCost.of(part.norm, self.rank),
            "query_norm": NormCost.of(part.query_norm, self.head_dim),
            "kv_norm": NormCost.of(part.norm, self.head_dim),
        }
        self.pools: dict[str, PoolCost] = {}
        self.window = symbol("W", part.window, part)
        if part.pooling is not None:
            self.pools["pool"] = PoolCost(part, self.head_dim, d)
            self.stride = symbol("s", part.pooling.rate, part)
            self.state_period = part.pooling.rate
            self.complexity = Complexity("O(T (W + T / s) H P)", "O((W + T / s) H P)", "O((W + T / s) P)")
        if part.index is not None:
            self.index_heads = symbol("H", part.index.num_heads, part)
            self.index_dim = symbol("P", part.index.head_dim, part)
            self.projections["index.q"] = Linear(self.rank, self.index_heads * self.index_dim)
            self.projections["index.weights"] = Linear(d, self.index_heads)
            self.pools["index.pool"] = PoolCost(part, self.index_dim, d)
        self.vectors = {name: norm.parameters() for name, norm in self.norms.items()} | {"sinks": self.heads}
        for name, pool in self.pools.items():
            self.projections |= {f"{name}.{inner}": each for inner, each in pool.projections.items()}
            self.vectors |= prefixed(f"{name}.", pool.vectors())

    def flops(self, work: Work) -> Counts:
        counts = self.projection_flops(work.tokens)
        rate = self.part.pooling.rate if self.part.pooling is not None else 0
        pairs = self._pairs(work, rate)
        products = 2 * work.rows * pairs * self.heads * self.head_dim
        counts |= {"scores": products, "mixture": products}
        if (index := self.part.index) is not None:
            windows = work.length.value // rate + (work.phase == "decode")  # the open one has a slot, too
            if windows <= index.top_k:
                del counts["index.q"], counts["index.weights"]
            else:
                of_index = work.queries * symbol("S", windows, self.part)
                counts["index.scores"] = 2 * work.rows * of_index * self.index_heads * self.index_dim
        return counts

    def _pairs(self, work: Work, rate: int) -> Formula:
        # pairs of a query and a key that is seen, or that is computed under a mask
        length, index = work.length.value, self.part.index
        windows = length // rate if rate else 0
        if work.attention == "computed" or work.phase == "decode":
            near = min(self.part.window, length) if work.phase == "decode" else length
            slots = windows + (rate > 0 and work.phase == "decode")  # with that of the open window
            return work.queries * symbol("S", near + slots, self.part)
        most = windows if index is None else index.top_k
        return symbol("A", _keys_seen(length, 1, self.part.window) + (_keys_seen(length, rate, most) if rate else 0))

    def state(self, length: int) -> int:
        keys = min(self.part.window, length) * self.part.head_dim
        return keys + sum(pool.state(length) for pool in self.pools.values())

    def unread_state(self, length: int) -> int:
        if self.part.pooling is None or self.part.index is None:
            return 0
        return max(0, length // self.part.pooling.rate - self.part.index.top_k) * self.part.head_dim

    def recurrent_state(self, length: int) -> int:
        return 0

    def saved_activations(self, work: TrainingWork) -> int:
        part, tokens = self.part, work.tokens
        features, size = part.num_heads * part.head_dim, work.itemsize
        saved = work.input_bytes(self.d.value) + self.norms["q_norm"].saved_activations(tokens)
        saved += self.norms["query_norm"].saved_activations(tokens * part.num_heads)
        saved += self.norms["kv_norm"].saved_activations(tokens) + work.input_bytes(part.query_rank)
        windows = work.length // part.pooling.rate if part.pooling is not None else 0
        keys = work.length + windows
        saved += tokens * features * 2 * size + work.rows * keys * part.head_dim * 2 * size  # queries, results, keys
        saved += tokens * part.num_heads * keys * (2 * FLOAT32 + (size if size == 2 else 0)) + tokens * keys
        saved += work.input_bytes(part.groups * part.group_rank)
        if part.index is not None and part.adds_to_loss:  # relevances of heads, both distributions, and masks
            pairs, heads = tokens * windows, part.index.num_heads
            saved += (pairs * (heads + 2) + tokens * heads) * FLOAT32 + 2 * pairs
            saved += (tokens * heads + work.rows * windows) * part.index.head_dim * size
        trained = [pool for name, pool in self.pools.items() if name == "pool" or part.adds_to_loss]
        return saved + sum(pool.saved_activations(work) for pool in trained)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        position, heads, rotary_dim = self.part.position, self.part.num_heads, self.part.rotated
        return PositionCost.of(position, self.d).shared_activations(heads, rotary_dim, work)


def _keys_seen(length: int, rate: int, most: int) -> int:
    """Sum over queries of the keys seen: one for every `rate` positions up to the query's own, at most `most`."""
    full = min(length // rate, most)
    return rate * full * (full - 1) // 2 + full * (length - full * rate + 1)
