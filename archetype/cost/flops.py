"""Floating-point operations of every module: two for each multiply-add of a matrix product.

What is no matrix product (norms, activations, softmax, rotations, look-ups) is left out, as is the convention of the
field. An additive score counts its product with w, not its tanh. Of Mamba's scan the contraction of the state with C
is counted, and its convolution; the elementwise recurrence of the state is not. A token counts the experts that it is
sent to, not those that stand by. The zeros that make latent attention's values as wide as its keys are left out.

Attention is counted `full`, every pair that is computed (all pairs, or all of a sparse pattern's tiles), or `half`,
the pairs that the pattern and the direction allow, which for a causal text is about half of them.
"""

from typing import Literal, NamedTuple, assert_never

from archetype import spec
from archetype.cost import parameters, sizes
from archetype.cost.formula import Formula, formula, symbol
from archetype.cost.parameters import Counts

Pairs = Literal["full", "half"]


class Pass(NamedTuple):
    """What a stack works on: rows of whole texts, or one new token at the end of each row."""

    rows: Formula
    length: Formula  # tokens of a row, the new one included
    causal: bool
    pairs: Pairs = "full"
    step: bool = False
    source: Formula | None = None  # tokens of each source, where there are sources
    layer: int = 0

    @property
    def queries(self) -> Formula:
        """New tokens of a row."""
        return formula(1) if self.step else self.length

    @property
    def tokens(self) -> Formula:
        """New tokens of all rows."""
        return self.rows * self.queries


def block(layer: spec.Block, d: Formula, of: Pass) -> Counts:
    """FLOPs of one layer, by product."""
    counts = {f"mixer.{name}": count for name, count in mixer(layer.mixer, d, of).items()}
    if layer.cross_attention is not None:
        counts |= {f"cross.{name}": count for name, count in cross(layer.cross_attention, d, of).items()}
    fed = feedforward(layer.feedforward, d, of.tokens)
    return counts | {f"feedforward.{name}": count for name, count in fed.items()}


def mixer(part: spec.Mixer, d: Formula, of: Pass) -> Counts:
    """FLOPs of a mixer, by product."""
    match part:
        case spec.Attention():
            return attention(part, d, of)
        case spec.LatentAttention():
            return latent_attention(part, d, of)
        case spec.RNN() | spec.LSTM() | spec.GRU():
            hidden, directions = sizes.hidden_features(part, d)
            return {"cell": 2 * of.tokens * sizes.gates(part) * directions * hidden * (d + hidden)}
        case spec.Mamba():
            inner, state, rank = sizes.mamba_sizes(part, d)
            once = 2 * of.tokens * inner
            return {
                "in_proj": 2 * once * d,
                "conv": once * symbol("c", part.conv_kernel),
                "x_proj": once * (rank + 2 * state),
                "dt_proj": once * rank,
                "scan": once * state,
                "out_proj": once * d,
            }
        case _:
            assert_never(part)


def attention(part: spec.Attention, d: Formula, of: Pass) -> Counts:
    """FLOPs of attention within a text, by product."""
    _, wide, narrow = sizes.head_sizes(part, d)
    tokens, pattern = of.tokens, part.pattern
    products = of.rows * wide * pair_flops(pattern, of)
    counts = {"q": 2 * tokens * d * wide, "k": 2 * tokens * d * narrow, "v": 2 * tokens * d * narrow}
    if isinstance(pattern, spec.GlobalWindow) and pattern.global_projections:
        counts |= {f"{name}_global": counts[name] for name in "qkv"}
        if of.pairs == "full":  # what the global tokens see through their own projections replaces what they saw first
            seeing = symbol("g", min(pattern.num_global_tokens, of.length.value))
            products = products + 2 * of.rows * wide * seeing * of.length
    return counts | {"scores": products, "mixture": products, "o": 2 * tokens * wide * d}


def cross(part: spec.Attention, d: Formula, of: Pass) -> Counts:
    """FLOPs of attention to a source, by product; its keys and values are computed once, with the whole source."""
    assert of.source is not None
    _, wide, narrow = sizes.head_sizes(part, d)
    products = 2 * of.tokens * of.source * wide
    once = formula(0) if of.step else 2 * of.rows * of.source * d * narrow
    own = 2 * of.tokens * d * wide
    return {"q": own, "k": once, "v": once, "scores": products, "mixture": products, "o": own}


def latent_attention(part: spec.LatentAttention, d: Formula, of: Pass) -> Counts:
    """FLOPs of latent attention, by product, in the form that takes fewer: the latents expanded, or looked at."""
    heads, plain, turned, value, latent = sizes.latent_sizes(part)
    tokens, pairs = of.tokens, of.rows * heads * pair_flops(spec.Full(), of)
    match part.query:
        case spec.DirectQuery():
            counts = {"q": 2 * tokens * d * heads * (plain + turned)}
        case spec.LowRankQuery():
            rank = symbol("r", part.query.rank)
            counts = {"q_down": 2 * tokens * d * rank, "q_up": 2 * tokens * rank * heads * (plain + turned)}
        case _:
            assert_never(part.query)
    counts |= {"kv_down": 2 * tokens * d * (latent + turned)}
    if part.absorbs(of.queries.value, of.length.value):
        counts |= {"kv_up": 2 * tokens * heads * latent * (plain + value)}
        counts |= {"scores": pairs * (latent + turned), "mixture": pairs * latent}
    else:
        counts |= {"kv_up": 2 * of.rows * of.length * latent * heads * (plain + value)}
        counts |= {"scores": pairs * (plain + turned), "mixture": pairs * value}
    return counts | {"o": 2 * tokens * heads * value * d}


def pair_flops(pattern: spec.Pattern, of: Pass) -> Formula:
    """FLOPs of one feature of one head of one row: two for each pair of positions."""
    n = of.length
    if of.step:
        whole, before = (spec.MaskContext(of.causal, length, of.layer) for length in (n.value, n.value - 1))
        allowed = pattern.pairs(whole) - pattern.pairs(before) if of.pairs == "half" else 0
        keys = allowed or pattern.cache_length(n.value)
        return 2 * (n if keys == n.value else symbol("W", keys))
    setting = spec.MaskContext(of.causal, n.value, of.layer)
    if of.pairs == "half":
        triangle = of.causal and isinstance(pattern, spec.Full)
        allowed = pattern.pairs(setting)
        return n * n + n if triangle else 2 * (n * n if allowed == n.value**2 else symbol("A", allowed))
    # a pattern whose tiles hold no fewer pairs than there are is computed whole
    computed = n.value**2 if isinstance(pattern, spec.Full) else pattern.num_computed_pairs(setting)
    return 2 * (symbol("A", computed) if computed < n.value**2 else n * n)


def feedforward(part: spec.FeedForward, d: Formula, tokens: Formula) -> Counts:
    """FLOPs of a feed-forward part, by projection."""
    match part:
        case spec.MLP() | spec.GatedMLP():
            one = 2 * tokens * d * sizes.inner_width(part, d)
            return dict.fromkeys(parameters.projections(part, d), one)
        case spec.MixtureOfExperts():
            counts = {"router": 2 * tokens * d * symbol("E", part.num_experts)}
            sent = tokens * sizes.chosen(part)
            counts |= {f"experts.{name}": n for name, n in feedforward(part.expert, d, sent).items()}
            shared = feedforward(part.shared, d, tokens) if part.shared else {}
            counts |= {f"shared.{name}": n for name, n in shared.items()}
            return counts | ({"shared_gate": 2 * tokens * d} if part.shared_gate else {})
        case spec.NoFeedForward():
            return {}
        case _:
            assert_never(part)
