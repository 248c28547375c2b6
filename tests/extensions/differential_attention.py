"""Differential attention (Ye 2024, arXiv 2410.05258) as an extension that reuses the core of attention."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import (
    FLOAT32,
    Cell,
    Complexity,
    Counts,
    Formula,
    ForwardContext,
    Inside,
    KVCache,
    LayerState,
    MixerCost,
    Place,
    Positive,
    Rotary,
    ScoreFunction,
    TrainingWork,
    Vectors,
    Work,
    X,
    attend,
    build_norm,
    causal_pairs,
    inside_of,
    invalid,
    symbol,
)


class DifferentialAttention(spec.Mixer):
    """(softmax(q1 k1^T / sqrt(P)) - lambda softmax(q2 k2^T / sqrt(P))) v, normalized per head (Ye 2024, section 2).

    Each of H heads has two queries and two keys of P = D / 2H features, and a value of 2P.

    Attributes:
        num_heads: pairs of attention maps, H.
        theta: base of the rotary frequencies.
    """

    kind: Literal["differential_attention"] = "differential_attention"
    num_heads: spec.Heads
    theta: Positive = 10000.0

    def check(self, width: int, causal: bool) -> None:
        """Check that each head has two maps of an even number of features, and that no position sees later ones."""
        if width % (4 * self.num_heads):
            invalid("num_heads", f"4 x {self.num_heads} does not divide d_model {width}", "use another number of heads")
        if not causal:
            invalid("kind", "differential attention is causal", "use it in a decoder")


class DifferentialAttentionModule(nn.Module):
    """The difference of two attention maps, applied to the values."""

    def __init__(self, mixer: DifferentialAttention, place: Place) -> None:
        super().__init__()
        d_model, self.heads = place.d_model, mixer.num_heads
        self.head_dim = d_model // (2 * self.heads)
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        vectors = (nn.Parameter(torch.empty(self.head_dim)) for _ in range(4))
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = vectors
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * place.layer)  # equation 3, in which the first layer is 1
        self.norm = build_norm(spec.RMSNorm(eps=1e-5), 2 * self.head_dim)
        sizes = spec.AttentionSizes(self.heads, self.heads, self.head_dim, self.head_dim)
        self.rotary = Rotary(spec.Rotary(theta=mixer.theta), sizes)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Draw small vectors, so that lambda starts near `lambda_init`."""
        if name.startswith("lambda_"):
            tensor.normal_(0.0, 0.1, generator=generator)
        return name.startswith("lambda_")

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Return an empty cache for both keys of each head, side by side, and its value."""
        return KVCache.empty(batch, self.heads, capacity, (2 * self.head_dim,) * 2, dtype, device)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """Attend from each new position to the earlier ones, which include those in the cache."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (torch.cat([self.rotary(y, context.positions, context) for y in z.chunk(2, -1)], -1) for z in (q, k))
        mask = None
        if isinstance(cache, KVCache):
            k, v, positions = cache.append(k, v, context)  # (B, H, S, 2P) twice, (b, S)
            mask = context.cached("differential pairs", lambda: causal_pairs(context.positions, positions))
        score, pairs = ScoreFunction(self.head_dim**-0.5), zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
        first, second = (attend(a, b, v, score, mask, mask is None, context.kernels) for a, b in pairs)
        y = (1 - self.lambda_init) * self.norm(first - self.weight_of_second().to(second.dtype) * second)
        z: Tensor = self.o(y.transpose(1, 2).flatten(2))
        return z

    def weight_of_second(self) -> Float[Tensor, ""]:
        """Lambda = exp(lambda_q1 lambda_k1) - exp(lambda_q2 lambda_k2) + lambda_init."""
        return (self.lambda_q1 @ self.lambda_k1).exp() - (self.lambda_q2 @ self.lambda_k2).exp() + self.lambda_init


class DifferentialAttentionCost(MixerCost):
    """Cost of four projections and, per head, of products over pairs of positions: two of P and two of 2P features."""

    part: DifferentialAttention
    state_name = "KV cache"
    complexity = Complexity("O(T^2 D)", "O(T D)", "O(T D)")

    def __init__(self, part: DifferentialAttention, d: Formula) -> None:
        super().__init__(part, d)
        self.head_dim = symbol("P", d.value // (2 * part.num_heads))

    def parameters(self) -> Counts:
        """Parameters of the projections, of the four vectors of lambda, and of the norm."""
        names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        return (
            dict.fromkeys("qkvo", self.d * self.d) | dict.fromkeys(names, self.head_dim) | {"norm": 2 * self.head_dim}
        )

    def flops(self, work: Work) -> Counts:
        """FLOPs of one pass, by product."""
        pairs = 2 * work.tokens * work.length * self.d
        return dict.fromkeys("qkvo", 2 * work.tokens * self.d * self.d) | {"scores": pairs, "mixture": 2 * pairs}

    def state(self, length: int) -> int:
        """Numbers in the cache: keys and values of all positions."""
        return 2 * length * self.d.value

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of the input, both halves of q, k and v, both results, their difference and its norm."""
        vectors, sums = 8 * self.d.value * work.itemsize, 3 * self.part.num_heads * FLOAT32
        return work.input_bytes(self.d.value) + work.tokens * (vectors + sums)


@inside_of(DifferentialAttention)
def draw(part: DifferentialAttention, modules: frozenset[str]) -> Inside:
    """Draw the difference of two maps, its product with the values, and the norm."""
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    cells = [Cell(name, column, 0, (X,)) for column, name in enumerate("qkv")]
    scores = Cell("scores", 0, 1, ("q", "k"), 2, "softmax(q₁k₁ᵀ) − λ softmax(q₂k₂ᵀ)", ("scores", *names))
    mixture = Cell("mixture", 0, 2, ("scores", "v"), 3, "weights · v", shape="(B, T, D)")
    norm = Cell("norm", 0, 3, ("mixture",), 3, "norm of each head · (1 − λ_init)", kind="norm", slim=True)
    return Inside((*cells, scores, mixture, norm, Cell("o", 1, 4, ("norm",))), "o")


archetype.register(DifferentialAttention, module=DifferentialAttentionModule, cost=DifferentialAttentionCost)
