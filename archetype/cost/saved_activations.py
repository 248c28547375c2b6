"""Bytes that autograd keeps of each part, from the forward pass until the backward pass has used them.

Counted for this package's own modules, tensor by tensor:

- of every matrix product its input, once for all that read it; of every norm its input and statistics (of an RMS norm
  also the normalized vectors, which a fused kernel would compute again);
- of attention q, k, v, its result and a log-sum-exp for each query where torch's kernel computes it; the weights of all
  pairs, in float32, where scores are bent, additive or computed by tiles, or where weights drop out or a table of
  positions is trained;
- of an activation its input, or its output where the derivative is a function of that; of a product both factors.

Computed in bfloat16 (autocast), products and activations take two bytes, norms and the residual stream four, and every
projection has an input of its own, cast for it. Recurrent cells and scans are kernels' own affair: what is counted for
them is what a kernel must keep at least.
"""

import math
from typing import Literal, NamedTuple, assert_never

from archetype import spec

Computed = Literal["float32", "bfloat16"]

FLOAT = 4  # bytes of float32
SAVES_ITS_OUTPUT = ("relu", "tanh", "sigmoid")


class Texts(NamedTuple):
    """The rows of tokens that one stack reads, and how its products are computed."""

    rows: int
    length: int
    causal: bool
    computed: Computed
    source: int = 0  # tokens of each source

    @property
    def tokens(self) -> int:
        """N."""
        return self.rows * self.length

    @property
    def bytes_each(self) -> int:
        """Bytes of what a product gives."""
        return FLOAT if self.computed == "float32" else 2

    def inputs(self, features: int, projections: int, tokens: int | None = None) -> int:
        """Bytes of the vectors that some projections read: one copy for all, or cast for each."""
        copies = 1 if self.computed == "float32" else projections
        return (self.tokens if tokens is None else tokens) * features * copies * self.bytes_each


def block(layer: spec.Block, d: int, texts: Texts, place: int = 0) -> int:
    """Bytes that one layer keeps."""
    contents = [mixer(layer.mixer, d, texts, place)]
    if layer.cross_attention is not None:
        contents.append(cross(layer.cross_attention, d, texts))
    if not isinstance(layer.feedforward, spec.NoFeedForward):
        contents.append(feedforward(layer.feedforward, d, texts))
    masks = len(contents) * texts.tokens * d * texts.bytes_each if layer.dropout else 0
    return sum(contents) + norms(layer.wiring, len(contents), d, texts.tokens) + masks - read_twice(layer, d, texts)


def read_twice(layer: spec.Block, d: int, texts: Texts) -> int:
    """Bytes of the vectors that both contents of parallel wiring read, if they read the same."""
    wiring = layer.wiring
    same = isinstance(wiring, spec.ParallelResidual) and (wiring.shared_norm or isinstance(wiring.norm, spec.NoNorm))
    return texts.tokens * d * FLOAT if same and texts.computed == "float32" else 0


def norms(wiring: spec.Wiring, contents: int, d: int, tokens: int) -> int:
    """Bytes that a layer's norms keep."""
    match wiring:
        case spec.PreNorm() | spec.PostNorm() | spec.OutputNorm():
            return contents * norm(wiring.norm, tokens, d)
        case spec.SandwichNorm():
            return 2 * contents * norm(wiring.norm, tokens, d)
        case spec.ParallelResidual():
            one = norm(wiring.norm, tokens, d)
            # both norms read one vector
            return one if wiring.shared_norm or not one else 2 * one - tokens * d * FLOAT
        case spec.Plain():
            return 0
        case _:
            assert_never(wiring)


def norm(part: spec.Norm, vectors: int, features: int) -> int:
    """Bytes that a norm keeps: its input, statistics, and what its weight multiplies where that is a step apart."""
    whole = vectors * features * FLOAT
    match part:
        case spec.LayerNorm():
            return whole + 2 * vectors * FLOAT + (features * FLOAT if part.unit_offset else 0)
        case spec.RMSNorm():
            multiplied = whole if part.weight else 0
            return whole + multiplied + vectors * FLOAT + (features * FLOAT if part.unit_offset else 0)
        case spec.BatchNorm():
            return 3 * whole + 2 * features * FLOAT
        case spec.NoNorm():
            return 0
        case _:
            assert_never(part)


def mixer(part: spec.Mixer, d: int, texts: Texts, place: int) -> int:
    """Bytes that a mixer keeps."""
    each, tokens = texts.bytes_each, texts.tokens
    match part:
        case spec.Attention():
            return attention(part, d, texts, place)
        case spec.LatentAttention():
            return latent_attention(part, d, texts)
        case spec.RNN() | spec.LSTM() | spec.GRU():
            return texts.inputs(d, 1) + tokens * d * kept_by_cell(part, each)
        case spec.Mamba():
            return texts.inputs(d, 1) + mamba(part, d, texts)
        case _:
            assert_never(part)


def mamba(part: spec.Mamba, d: int, texts: Texts) -> int:
    """Bytes that a selective state space keeps beside its input: about its steps, and a state every sqrt(T) of them."""
    inner, state = part.expand * d, part.state_size
    computed = 6 * inner + part.rank(d) + 2 * state  # both halves, around the convolution and the last projection
    exact = 6 * inner  # the scan and its gate are computed in float32
    states = -(-texts.length // math.isqrt(texts.length)) * inner * state * FLOAT
    before = (part.conv_kernel - 1) * inner * texts.bytes_each  # what the convolution reads before the text
    return texts.tokens * (computed * texts.bytes_each + exact * FLOAT) + texts.rows * (states + before)


def kept_by_cell(part: spec.RNN | spec.LSTM | spec.GRU, each: int) -> int:
    """Bytes that torch's kernels for CPU keep of each step and feature."""
    match part:
        case spec.RNN():
            return each
        case spec.GRU():
            return 7 * each
        case spec.LSTM():
            return 17 * (each + FLOAT) // 2  # the workspace of oneDNN, of which half is float32 in any case
        case _:
            assert_never(part)


def attention(part: spec.Attention, d: int, texts: Texts, place: int) -> int:
    """Bytes that attention within a text keeps."""
    sizes = part.sizes(d)
    kept = texts.inputs(d, 3)
    for heads in (sizes.num_heads, sizes.num_kv_heads):
        together = heads if part.qk_norm_over == "all" else 1
        kept += norm(part.qk_norm, texts.tokens * heads // together, sizes.head_dim * together)
    if part.clip_qkv is not None:
        kept += texts.tokens * (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim * texts.bytes_each
    if texts.computed == "bfloat16":  # every layer casts what it reads of positions
        kept += 4 * texts.tokens * sizes.rotary_dim
        kept += 2 * part.num_heads * texts.length**2 if isinstance(part.position, spec.Alibi) else 0
    setting = spec.MaskContext(texts.causal, texts.length, place)
    if not isinstance(part.pattern, spec.Full) and part.pattern.num_computed_pairs(setting) < texts.length**2:
        return kept + tiled(part, sizes, texts, setting)
    return kept + looked_at(part, sizes, texts, texts.length)


def cross(part: spec.Attention, d: int, texts: Texts) -> int:
    """Bytes that attention to a source keeps. In float32 the source itself is kept once for all layers."""
    cast = texts.inputs(d, 2, texts.rows * texts.source) if texts.computed == "bfloat16" else 0
    return texts.inputs(d, 1) + cast + looked_at(part, part.sizes(d), texts, texts.source)


def looked_at(part: spec.Attention, sizes: spec.AttentionSizes, texts: Texts, keys: int) -> int:
    """Bytes of queries, keys, values, what stands between them, and the result, when all pairs are computed."""
    tokens, each, heads = texts.tokens, texts.bytes_each, part.num_heads
    q, kv = tokens * heads * sizes.head_dim, texts.rows * keys * sizes.num_kv_heads * sizes.head_dim
    pairs = tokens * heads * keys
    if part.score == "additive" or part.softcap is not None:
        # the sums under tanh stand twice, once laid out for the product with w
        sums = 2 * pairs * sizes.head_dim * each if part.score == "additive" else pairs * FLOAT + (q + kv) * each
        # before softmax, where scores are held within what it takes, and behind it
        weights = pairs * FLOAT * (4 if part.dropout else 2) + (2 * pairs if each == 2 else 0)
        return sums + weights + (kv + q) * each + (texts.length * keys if texts.causal else 0)
    if part.dropout or isinstance(part.position, spec.RelativeBias):  # beyond torch's kernel: products in float32
        return 3 * q * FLOAT + pairs * FLOAT * (3 if part.dropout else 1) + q * each
    # turned queries lie head after head, and so does the result: it is laid out anew for the last projection
    results = 2 if isinstance(part.position, spec.Rotary) else 1
    return ((1 + results) * q + 2 * kv) * each + tokens * heads * FLOAT


def tiled(part: spec.Attention, sizes: spec.AttentionSizes, texts: Texts, setting: spec.MaskContext) -> int:
    """Bytes that attention by tiles keeps: gathered queries, keys and values, two numbers for each pair, the result."""
    each, heads = texts.bytes_each, part.num_heads
    shapes = [piece.shape for piece in part.pattern.pieces(setting) if all(piece.shape)]
    kept = 0
    for tiles, queries, keys in shapes:
        gathered = tiles * (queries * heads + 2 * keys * sizes.num_kv_heads) * sizes.head_dim
        pairs = tiles * queries * keys * heads
        numbers = 2 + (part.softcap is not None) + 2 * bool(part.dropout)
        sums = tiles * queries * heads * FLOAT
        kept += texts.rows * (gathered * each + pairs * numbers * FLOAT + sums + (2 * pairs if each == 2 else 0))
    result = texts.tokens * heads * sizes.head_dim * each
    joined = len(shapes) * (result + texts.tokens * heads * FLOAT) if len(shapes) > 1 else 0
    return kept + joined + result


def latent_attention(part: spec.LatentAttention, d: int, texts: Texts) -> int:
    """Bytes that latent attention keeps, its latents expanded."""
    tokens, each = texts.tokens, texts.bytes_each
    heads, latent = part.num_heads, part.kv_lora_rank
    kept = texts.inputs(d, 2) + norm(part.norm, tokens, latent) + texts.inputs(latent, 1)
    if isinstance(part.query, spec.LowRankQuery):
        kept += norm(part.norm, tokens, part.query.rank) + texts.inputs(part.query.rank, 1)
    # the kernel wants queries, keys, values and the result equally wide
    kept += tokens * heads * (4 * max(part.head_dim, part.v_head_dim) + part.v_head_dim) * each
    if part.dropout:
        return kept + 3 * heads * tokens * texts.length * each
    return kept + tokens * heads * FLOAT


def feedforward(part: spec.FeedForward, d: int, texts: Texts) -> int:
    """Bytes that a feed-forward part keeps."""
    match part:
        case spec.MLP() | spec.GatedMLP():
            return network(part, d, texts, texts.tokens)
        case spec.MixtureOfExperts():
            sent = texts.tokens * part.experts_per_token
            kept = texts.inputs(d, 1) + 2 * texts.tokens * part.num_experts * FLOAT  # affinities, twice
            # each expert's tokens are gathered, and what it says of them is weighed
            kept += network(part.expert, d, texts, sent) + sent * d * texts.bytes_each
            if part.shared is None:
                return kept
            kept += network(part.shared, d, texts, texts.tokens)
            # a gate's product keeps both its sides, and the sigmoid what it gave
            gated = texts.inputs(d, 1) + texts.tokens * (d + 1) * texts.bytes_each
            return kept + (gated if part.shared_gate else 0)
        case spec.NoFeedForward():
            return 0
        case _:
            assert_never(part)


def network(part: spec.Expert, d: int, texts: Texts, tokens: int) -> int:
    """Bytes that one feed-forward network keeps of some tokens."""
    by_output = part.activation in SAVES_ITS_OUTPUT
    swished = isinstance(part.activation, spec.Swish)  # a product of its input and a sigmoid
    match part:
        case spec.MLP():
            wide, projections = 1 + (not by_output) + swished, 1
        case spec.GatedMLP():
            wide, projections = 3 + (not by_output) + swished, 2
        case _:
            assert_never(part)
    return texts.inputs(d, projections, tokens) + tokens * part.width(d) * wide * texts.bytes_each
