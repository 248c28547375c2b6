"""Every part that a specification can name, drawn at random.

Models drawn here are small enough to run and tame enough for float32; `wild=True` draws every number that a file may
hold, for tests that read and write but do not compute. Strategies are kept, for to make one takes as long as to draw
from it.
"""

from functools import cache
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from archetype import spec
from archetype.spec.base import MAX_FLOAT, MAX_SIZE

WIDTHS = (4, 6, 8, 9, 12)
CONTEXT = 16
VOCABULARY = 13
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu2")


class Place(NamedTuple):
    """Where a layer stands: what its parts depend on."""

    d_model: int
    causal: bool = True
    relative: tuple[spec.RelativeBias | spec.RelativeVectors, int] | None = None  # the stack's table, and its heads
    reads_tokens: bool = True  # whether its vectors stand for tokens, whose ids its parts may read


@cache
def positive(low: float, high: float, wild: bool) -> SearchStrategy[float]:
    """A positive number: from a tame range, or any that is finite."""
    return st.floats(0, exclude_min=True, max_value=MAX_FLOAT) if wild else st.floats(low, high)


@cache
def counts(low: int, high: int, wild: bool) -> SearchStrategy[int]:
    """A size: from a tame range, or any that is allowed."""
    return st.integers(1, 2**20) if wild else st.integers(low, high)


@cache
def probabilities() -> SearchStrategy[float]:
    """A rate of dropout."""
    return st.floats(0, 1, exclude_max=True)


@cache
def vector_norms(wild: bool = False) -> SearchStrategy[spec.VectorNorm]:
    """Every norm that looks at one vector alone."""
    eps = positive(1e-6, 1e-2, wild)
    return st.one_of(
        st.just(spec.NoNorm()),
        st.builds(spec.LayerNorm, eps=eps, bias=st.booleans(), unit_offset=st.booleans()),
        st.builds(spec.LayerNorm, eps=eps, bias=st.booleans(), weight=st.just(False)),
        st.builds(spec.RMSNorm, eps=eps, unit_offset=st.booleans()),
        st.builds(spec.RMSNorm, eps=eps, weight=st.just(False)),
        st.builds(spec.L2Norm, eps=eps),
        st.builds(spec.Affine, bias=st.booleans()),
        st.builds(spec.DynamicTanh, alpha=positive(0.1, 2.0, wild)),
    )


@cache
def gains(wild: bool = False) -> SearchStrategy[spec.Gain | None]:
    """No learned factors, or some."""
    number = positive(0.5, 2.0, wild)
    return st.none() | st.builds(spec.Gain, init=number, stored=number, squared=st.booleans())


@cache
def norms(wild: bool = False) -> SearchStrategy[spec.Norm]:
    """Every norm."""
    batch = st.builds(spec.BatchNorm, eps=positive(1e-6, 1e-2, wild), momentum=probabilities())
    gated = st.builds(spec.GatedRMSNorm, eps=positive(1e-6, 1e-2, wild), rank=counts(1, 5, wild))
    return vector_norms(wild) | batch | gated


@cache
def activations(wild: bool = False) -> SearchStrategy[spec.Activation]:
    """Every activation."""
    bounded = (st.builds(kind, beta=positive(0.1, 4.0, wild)) for kind in (spec.Swish, spec.SiTU))
    return st.one_of(st.sampled_from(ACTIVATIONS), *bounded)


@cache
def experts(wild: bool = False) -> SearchStrategy[spec.Expert]:
    """Every feed-forward part that may be one of many."""
    rule = st.builds(spec.EightThirds, multiple_of=counts(1, 16, wild))
    widths = st.one_of(counts(1, 24, wild), rule)
    common = {"d_ff": widths, "activation": activations(wild), "bias": st.booleans()}
    common["down_bias"] = st.none() | st.booleans()
    limit = st.none() | positive(0.1, 4.0, wild)
    gated = st.builds(spec.GatedMLP, limit=limit, up_bound=limit, unit_offset=st.booleans(), **common)
    return st.builds(spec.MLP, **common) | gated


@cache
def routers(wild: bool = False, reads_tokens: bool = True, causal: bool = True) -> SearchStrategy[spec.Router]:
    """Every way to choose and to weigh experts."""
    scale = positive(0.25, 2.0, wild)
    affinity = st.sampled_from(["equal", "softmax", "sigmoid", "sqrt_softplus"])
    hashed = st.builds(spec.HashRouter, renormalize=st.booleans(), scale=scale, affinity=affinity)
    learned = st.one_of(
        st.builds(
            part,
            renormalize=st.booleans(),
            scale=scale,
            expert_bias=st.booleans(),
            bias=st.booleans(),
            expert_bias_on=st.sampled_from(["affinities", "logits"]),
        )
        for part in (spec.SoftmaxRouter, spec.SigmoidRouter, spec.SqrtSoftplusRouter)
    )
    mixer = st.builds(spec.SparseMixerRouter, scale=scale, bias=st.booleans(), jitter=positive(0.01, 1.0, wild))
    narrow = st.builds(
        spec.MLPRouter, width=counts(1, 6, wild), norm=vector_norms(wild), renormalize=st.booleans(), scale=scale,
        expert_bias=st.booleans(),
    )  # fmt: skip
    learned = learned | mixer | narrow
    if not causal:
        learned |= st.builds(spec.ExpertChoiceRouter, scale=scale, bias=st.booleans())
    return learned | hashed if reads_tokens else learned


@cache
@st.composite
def mixtures_of_experts(
    draw: DrawFn, wild: bool = False, reads_tokens: bool = True, causal: bool = True
) -> spec.MixtureOfExperts:
    """Some of several experts for each token, perhaps out of the best groups, perhaps beside one for all."""
    num_groups, size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    groups_per_token = draw(st.integers(1, num_groups))
    best = draw(st.integers(1, size))
    groups = spec.ExpertGroups(num_groups=num_groups, groups_per_token=groups_per_token, top_k_in_group=best)
    router, shared = draw(routers(wild, reads_tokens, causal)), draw(st.none() | experts(wild))
    by_affinities = not (router.routes_tokens or router.weighs_choices or router.chooses_tokens)
    grouped = by_affinities and draw(st.booleans())
    chosen = draw(st.integers(1, (groups_per_token if grouped else num_groups) * size))
    latent_width = draw(st.none() | counts(1, 5, wild))
    has_idle = latent_width is None and not grouped and (by_affinities or router.weighs_choices)
    return spec.MixtureOfExperts(
        idle=(idle := draw(st.integers(0, 2)) if has_idle else 0),
        idle_output=draw(st.sampled_from(["input", "zero"])) if idle else "input",
        always=draw(st.integers(0, 2)) if by_affinities and not idle else 0,
        num_experts=num_groups * size,
        experts_per_token=chosen,
        expert=draw(experts(wild)),
        latent_width=latent_width,
        latent_norm=spec.NoNorm() if latent_width is None else draw(vector_norms(wild)),
        weighs=draw(st.sampled_from(["outputs", "inputs"])),
        shared=shared,
        shared_gate=shared is not None and draw(st.booleans()),
        router=router.replace(renormalize=False) if chosen == 1 else router,
        groups=groups if grouped else None,
        balance_loss=0.0
        if router.routes_tokens or router.chooses_tokens
        else draw(st.just(0.0) | positive(0.001, 1.0, wild)),
    )


@cache
def feedforwards(
    wild: bool = False, reads_tokens: bool = True, causal: bool = True
) -> SearchStrategy[spec.FeedForward]:
    """Every feed-forward part that needs nothing of the embedding."""
    mixtures = mixtures_of_experts(wild, reads_tokens, causal)
    alone = st.one_of(experts(wild), mixtures)
    pair = st.builds(lambda *parts: spec.FeedForwardsTogether(parts=parts, input_scales=(1.0, 0.5)), alone, alone)
    others = [spec.XIELU(), spec.PolyNorm(), spec.GaussianTopK(share=0.5)]  # which experts do not have
    trained = st.sampled_from(others)
    network = st.builds(
        lambda part, activation, norm, gain: part.replace(activation=activation, hidden_norm=norm, hidden_gain=gain),
        experts(wild), st.sampled_from([spec.SiLU()]) | trained, vector_norms(wild), gains(wild),
    )  # fmt: skip
    mixing = st.builds(
        spec.ChannelMixing, d_ff=counts(1, 12, wild), receptance=st.booleans(),
        mix_of=st.sampled_from(["token", "previous"]),
    )  # fmt: skip
    memories = st.builds(
        spec.NgramMemory, rows=counts(2, 40, wild), row_width=counts(1, 4, wild), n=st.integers(2, 4),
        heads=st.integers(1, 3), conv_kernel=counts(1, 4, wild), boundary=st.integers(0, 5),
        table=st.integers(0, 2), seed=st.integers(0, 9), multiple=st.integers(1, 8), norm=vector_norms(wild),
    )  # fmt: skip
    ngrams = st.builds(
        spec.NgramEmbedding, rows=counts(2, 40, wild), row_width=counts(1, 4, wild), n=st.integers(2, 4),
        splits=st.integers(1, 3), boundary=st.integers(0, 5),
    )  # fmt: skip
    others = st.one_of(experts(wild), mixtures, st.just(spec.NoFeedForward()), pair, network, mixing)
    return st.one_of(others, memories, ngrams) if reads_tokens else others


@cache
@st.composite
def llama3_scalings(draw: DrawFn, wild: bool = False) -> spec.Llama3Scaling:
    """Bands that are not empty."""
    low = draw(st.floats(0.25, 4.0))
    return spec.Llama3Scaling(
        factor=draw(positive(1.0, 16.0, wild)),
        low_frequency_factor=low,
        high_frequency_factor=low + draw(st.floats(0.125, 8.0)),
        original_context_length=draw(counts(4, 256, wild)),
    )


@cache
def yarn_scalings(wild: bool = False) -> SearchStrategy[spec.YarnScaling]:
    """With each way to say the attention factor."""
    optional = st.none() | positive(0.5, 2.0, wild)
    return st.builds(
        spec.YarnScaling,
        factor=positive(1.0, 16.0, wild),
        original_context_length=counts(4, 256, wild),
        beta_fast=positive(8.0, 64.0, wild),
        beta_slow=positive(0.5, 4.0, wild),
        mscale=optional,
        mscale_all_dim=optional,
        attention_factor=optional,
        truncate=st.booleans(),
    )


@cache
def fixed_scalings(wild: bool = False) -> SearchStrategy[spec.RotaryScaling]:
    """Every scaling that does not follow the text's length."""
    return st.one_of(
        st.just(spec.NoScaling()),
        st.builds(spec.LinearScaling, factor=positive(1.0, 16.0, wild)),
        yarn_scalings(wild),
        llama3_scalings(wild),
    )


@cache
def scalings(wild: bool = False) -> SearchStrategy[spec.RotaryScaling]:
    """Every scaling. A tame dynamic one starts beyond `CONTEXT`: past its start, earlier logits change by design."""
    beyond = counts(CONTEXT, 4 * CONTEXT, wild)
    factor = positive(1.0, 16.0, wild)
    return fixed_scalings(wild) | st.builds(spec.DynamicScaling, factor=factor, original_context_length=beyond)


@cache
@st.composite
def rotaries(draw: DrawFn, head_dim: int, wild: bool = False) -> spec.Rotary:
    """Rotary positions that fit heads of `head_dim` features."""
    dims = st.integers(1, head_dim // 2).map(lambda pairs: 2 * pairs)
    dim = draw(dims if head_dim % 2 else st.none() | dims)
    return spec.Rotary(
        theta=draw(st.floats(10.0, 1e6)),
        dim=dim,
        interleaved=draw(st.booleans()),
        scaling=draw(scalings(wild) | scalings_by_pair((dim or head_dim) // 2, wild)),
    )


@cache
def scalings_by_pair(pairs: int, wild: bool = False) -> SearchStrategy[spec.RotaryScaling]:
    """Scalings that say something of each pair; tame ones that follow the length start beyond `CONTEXT`."""
    factors = st.tuples(*pairs * [positive(1.0, 16.0, wild)])
    return st.builds(
        spec.ProportionalScaling, share=st.floats(0.125, 1.0), factor=positive(1.0, 16.0, wild)
    ) | st.builds(
        spec.LongRopeScaling,
        short_factors=factors,
        long_factors=factors,
        original_context_length=counts(CONTEXT, 4 * CONTEXT, wild),
        attention_factor=positive(0.5, 2.0, wild),
    )


@cache
@st.composite
def relative_biases(draw: DrawFn, wild: bool = False) -> spec.RelativeBias:
    """Tables of position biases; tame ones reach the logarithmic buckets within `CONTEXT`."""
    num_buckets = 4 * draw(counts(1, 2, wild).map(lambda n: min(n, 2**18)))
    max_distance = num_buckets // 2 + draw(counts(1, 2 * CONTEXT, wild))
    return spec.RelativeBias(num_buckets=num_buckets, max_distance=max_distance)


@cache
@st.composite
def patterns(draw: DrawFn, causal: bool, wild: bool = False) -> spec.Pattern:
    """Every pattern that may stand in a decoder, or in an encoder; tame ones end within `CONTEXT`."""
    size = counts(1, CONTEXT, wild)
    kinds = [
        "full",
        "window",
        "chunked",
        "block_causal",
        "strided",
        "fixed",
        "global_window",
        *([] if causal else ["bigbird"]),
    ]
    match draw(st.sampled_from(kinds)):
        case "window":
            return spec.Window(size=draw(size))
        case "chunked":
            return spec.Chunked(size=draw(size))
        case "block_causal":
            return spec.BlockCausal(size=draw(size))
        case "strided":
            return spec.Strided(stride=draw(size))
        case "fixed":
            stride = draw(size)
            return spec.Fixed(stride=stride, num_summary=draw(st.integers(1, stride)))
        case "global_window":
            own = not causal and draw(st.booleans())
            return spec.GlobalWindow(
                size=draw(size), num_global_tokens=draw(counts(1, 3, wild)), global_projections=own
            )
        case "bigbird":
            return spec.BigBird(
                block=draw(counts(1, 3, wild)), window_blocks=draw(st.sampled_from([1, 3])),
                random_blocks=draw(counts(1, 2, wild)), global_blocks=draw(counts(1, 2, wild)),
                dense_up_to_blocks=draw(st.integers(0, 3)),
                seed=draw(st.integers(0, 2**63 - 1) if wild else st.integers(0, 3)),
            )  # fmt: skip
        case _:
            return spec.Full()


@cache
def biases() -> SearchStrategy[spec.ProjectionBiases]:
    """Every choice of projections with a bias."""
    return st.builds(spec.ProjectionBiases, **dict.fromkeys("qkvo", st.booleans()))


@cache
def output_gates() -> SearchStrategy[spec.OutputGate]:
    """Every gate on attention's result."""
    per, activation = st.sampled_from(["feature", "head"]), st.sampled_from(["sigmoid", "softplus"])
    return st.builds(spec.OutputGate, per=per, activation=activation)


@cache
def value_embeddings(d_model: int, wild: bool = False) -> SearchStrategy[spec.ValueEmbedding]:
    """Every table of values by token id."""
    features = st.none() | st.integers(1, d_model)
    gate = st.builds(spec.ValueGate, features=features, scale=positive(0.5, 3.0, wild))
    return st.builds(spec.ValueEmbedding, gate=st.none() | gate)


@cache
def query_scales(wild: bool = False) -> SearchStrategy[spec.QueryScale]:
    """Every growth of queries; a tame one begins within `CONTEXT`."""
    sizes = {"length": counts(2, CONTEXT, wild), "offset": st.integers(0, 2)}
    sizes["form"] = st.sampled_from(["log", "log_ratio", "power"])
    return st.builds(spec.QueryScale, beta=positive(0.1, 1.0, wild), **sizes)


@cache
@st.composite
def key_selections(draw: DrawFn, wild: bool = False) -> spec.KeySelection:
    """Every choice of keys. Tame heads have three features at least: of two, LayerNorm leaves two vectors of all."""
    head_dim = draw(counts(3, 6, wild))
    scaling = draw(fixed_scalings(wild))
    rotary = spec.Rotary(theta=draw(st.floats(10.0, 1e6)), dim=2, interleaved=draw(st.booleans()), scaling=scaling)
    if draw(st.booleans()):
        top = draw(counts(1, 4, wild))
        return spec.BlockIndex(
            block=draw(counts(1, 4, wild)), top_blocks=top, local_blocks=draw(st.integers(1, top)), num_heads=1,
            head_dim=head_dim, pooling=draw(st.sampled_from(["max", "mean"])), norm=draw(vector_norms(wild)),
            position=draw(st.sampled_from([None, rotary] if head_dim > 1 else [None])),
            loss_weight=draw(st.just(0.0) | positive(0.1, 1.0, wild)),
        )  # fmt: skip
    position = draw(st.sampled_from([None, rotary] if head_dim > 1 else [None]))
    if draw(st.sampled_from([False, False, True])):
        return spec.PoolIndex(
            pool=draw(counts(1, 4, wild)), top_pools=draw(counts(1, 4, wild)), num_heads=draw(counts(1, 3, wild)),
            head_dim=head_dim, position=position, norm=draw(vector_norms(wild)),
            loss_weight=draw(st.just(0.0) | positive(0.1, 1.0, wild)),
        )  # fmt: skip
    return spec.LightningIndex(
        top_k=draw(counts(1, CONTEXT, wild)),
        num_heads=draw(counts(1, 3, wild)),
        head_dim=head_dim,
        position=position,
        rotates="first" if position is None else draw(st.sampled_from(["first", "last"])),
        norm=draw(vector_norms(wild)),
        loss_weight=draw(st.just(0.0) | positive(0.1, 1.0, wild)),
    )


@cache
@st.composite
def attentions(draw: DrawFn, place: Place, wild: bool = False, cross: bool = False) -> spec.Attention:
    """Attention that fits a place; to a source, without positions and patterns."""
    d_model = place.d_model
    num_heads = draw(st.integers(1, 4))
    given_dims = st.integers(1, 6)
    head_dim = draw(given_dims if d_model % num_heads else st.none() | given_dims)
    size = head_dim or d_model // num_heads
    # torch counts no FLOPs for additive scores of one feature: their product with w is of single numbers
    score = draw(st.sampled_from(["dot", "dot", "dot", "additive"] if size > 1 else ["dot"]))
    pattern = spec.Full() if cross or score == "additive" else draw(patterns(place.causal, wild))
    positions: list[SearchStrategy[spec.MixerPosition]] = [st.just(spec.NoPosition())]
    if not cross and not isinstance(pattern, spec.GlobalWindow | spec.BigBird):
        positions.append(st.builds(spec.Alibi, scale=positive(0.25, 2.0, wild)))
    if not cross and score == "dot" and size > 1:
        positions += 2 * [rotaries(size, wild)]
    if not cross and place.relative is not None and isinstance(place.relative[0], spec.RelativeBias):
        positions += 2 * [st.just(place.relative[0])]
    if not cross and place.causal and score == "dot" and isinstance(pattern, spec.Full) and d_model % 2 == 0:
        positions.append(st.builds(spec.TransformerXL, theta=positive(10.0, 1e5, wild)))
    if not cross and place.causal and score == "dot" and not isinstance(pattern, spec.GlobalWindow):
        positions.append(st.builds(spec.RelativeLogits, rank=counts(1, 4, wild), extent=counts(1, 12, wild)))
    position = draw(st.one_of(positions))
    if isinstance(position, spec.RelativeBias) and place.relative is not None:
        num_heads, head_dim = place.relative[1], size
    norm, over = draw(vector_norms(wild)), draw(st.sampled_from(["head", "all"]))
    turns = isinstance(position, spec.Rotary) and over == "head" and not isinstance(norm, spec.NoNorm)
    follows = isinstance(position, spec.Rotary) and position.scaling.follows_length
    if isinstance(pattern, spec.GlobalWindow) and follows:
        pattern = pattern.replace(global_projections=False)
    chooses = not cross and score == "dot" and isinstance(pattern, spec.Full) and not position.reads_queries
    has_own_values = isinstance(pattern, spec.GlobalWindow) and pattern.global_projections
    looks_up = place.reads_tokens and not cross and not has_own_values
    keys_as_values, bias = not has_own_values and draw(st.booleans()), draw(biases())
    index = draw(st.none() | key_selections(wild)) if chooses else None
    divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
    num_kv_heads = draw(st.none() | st.sampled_from(divisors))
    has_pairs = num_heads % 2 == 0 and (num_kv_heads or 2) % 2 == 0 and index is None and not has_own_values
    subtracts = has_pairs and not cross and draw(st.booleans())
    return spec.Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        differential=spec.Differential(norm=draw(vector_norms(wild))) if subtracts else None,
        head_dim=head_dim,
        v_head_dim=None if keys_as_values else draw(st.none() | counts(1, 6, wild)),
        bias=bias.replace(v=False) if keys_as_values else bias,
        score=score,
        scale=draw(st.none() | positive(0.1, 1.5, wild)) if score == "dot" else None,
        softcap=draw(st.none() | positive(0.5, 8.0, wild)) if score == "dot" else None,
        clip_qkv=draw(st.none() | positive(0.1, 2.0, wild)),
        qk_norm=norm,
        qk_norm_over=over,
        qk_norm_after_rope=turns and draw(st.booleans()),
        keys_as_values=keys_as_values,
        value_norm=draw(vector_norms(wild)),
        value_scale=draw(st.just(1.0) | positive(0.1, 2.0, wild)),
        sinks=draw(st.booleans()),
        gate=(gate := draw(st.none() | output_gates())),
        gate_gain=draw(gains(wild)) if gate else None,
        query_gain=None if has_own_values else draw(gains(wild)),
        key_factors=not has_own_values and draw(st.booleans()),
        heads_norm=draw(vector_norms(wild)),
        query_scale=None if cross else draw(st.none() | query_scales(wild)),
        value_embedding=draw(st.none() | value_embeddings(d_model, wild)) if looks_up else None,
        position=position,
        pattern=pattern,
        index=index,
        dropout=draw(probabilities()),
    )


@cache
@st.composite
def latent_attentions(draw: DrawFn, wild: bool = False) -> spec.LatentAttention:
    """Latents narrow enough to be looked at in every pass, and wide enough to be expanded for a whole text."""
    low_rank = st.builds(spec.LowRankQuery, rank=counts(1, 8, wild))
    return spec.LatentAttention(
        num_heads=draw(st.integers(1, 3)),
        query=draw(st.just(spec.DirectQuery()) | low_rank),
        kv_lora_rank=draw(counts(1, 12, wild)),
        qk_nope_head_dim=draw(counts(1, 6, wild)),
        qk_rope_head_dim=2 * draw(st.integers(1, 3)),
        v_head_dim=draw(counts(1, 6, wild)),
        sinks=draw(st.booleans()),
        gate=draw(st.none() | output_gates()),
        query_scale=draw(st.none() | query_scales(wild)),
        position=spec.Rotary(theta=draw(st.floats(10.0, 1e6)), interleaved=draw(st.booleans()),
                             scaling=draw(fixed_scalings(wild))),
        norm=draw(vector_norms(wild)),
        bias=draw(st.booleans()),
        scale=draw(st.none() | positive(0.1, 1.5, wild)),
        index=draw(st.none() | key_selections(wild)),
        dropout=draw(probabilities()),
    )  # fmt: skip


@cache
@st.composite
def recurrences(draw: DrawFn, place: Place) -> spec.RNN | spec.LSTM | spec.GRU:
    """Every recurrent mixer that fits a place."""
    both = not place.causal and place.d_model % 2 == 0 and draw(st.booleans())
    kind = draw(st.sampled_from([spec.RNN, spec.LSTM, spec.GRU]))
    if kind is spec.RNN:
        return spec.RNN(bidirectional=both, activation=draw(st.sampled_from(["tanh", "relu"])))
    return kind(bidirectional=both)


@cache
@st.composite
def mambas(draw: DrawFn, wild: bool = False) -> spec.Mamba:
    """State spaces, also without a convolution's past."""
    steps = sorted(draw(st.tuples(positive(0.001, 0.1, wild), positive(0.001, 0.1, wild))))
    return spec.Mamba(
        expand=draw(counts(1, 2, wild)),
        state_size=draw(counts(1, 4, wild)),
        conv_kernel=draw(counts(1, 4, wild)),
        dt_rank=draw(st.none() | counts(1, 3, wild)),
        conv_bias=draw(st.booleans()),
        bias=draw(st.booleans()),
        norm=draw(vector_norms(wild)),
        dt_min=steps[0],
        dt_max=steps[1],
    )


@cache
@st.composite
def linear_mixers(draw: DrawFn, wild: bool = False, causal: bool = True) -> spec.Mixer:
    """Mixers that read a text in chunks, of which encoders take some, and the short convolution."""
    kinds: list[type[spec.Mixer]] = [spec.Mamba2, spec.GatedDeltaNet, spec.ShortConvolution]
    kinds += [spec.LinearAttention, spec.RGLRU, spec.MLSTM, spec.RWKV4, spec.Mamba3] if causal else []
    kind, groups = draw(st.sampled_from(kinds)), counts(1, 2, wild)
    kernel, number, chunk = draw(counts(1, 4, wild)), draw(groups), draw(counts(1, CONTEXT, wild))
    if kind is spec.ShortConvolution:
        return spec.ShortConvolution(conv_kernel=kernel, bias=draw(st.booleans()))
    heads, size = number * draw(st.integers(1, 2)) if number <= 2 else number, draw(counts(2, 4, wild))
    common = {"num_heads": heads, "head_dim": size, "conv_kernel": kernel, "chunk_size": chunk}
    eps = draw(positive(1e-6, 1e-2, wild))
    if kind is spec.RWKV4:
        return spec.RWKV4(width=draw(st.none() | counts(1, 9, wild)), chunk_size=chunk)
    if kind is spec.MLSTM:
        return spec.MLSTM(
            num_heads=heads, head_dim=size, v_head_dim=draw(counts(1, 5, wild)), bias=draw(st.booleans()),
            gate_softcap=draw(st.none() | positive(1.0, 20.0, wild)), norm_eps=eps, eps=eps, chunk_size=chunk,
        )  # fmt: skip
    if kind is spec.Mamba3:
        return spec.Mamba3(
            num_heads=heads, head_dim=size, num_groups=number, rotary_dim=2,
            state_size=draw(counts(2, 5, wild).map(lambda size: max(size, 2))),
            rank=draw(counts(1, 2, wild)), norm=draw(st.booleans()), eps=eps, chunk_size=chunk,
        )  # fmt: skip
    if kind is spec.RGLRU:
        width = heads * (size if heads * size <= MAX_SIZE else 1)
        return spec.RGLRU(num_heads=heads, width=width, conv_kernel=kernel, chunk_size=chunk, activation=spec.SiLU())
    if kind is spec.LinearAttention:
        gives = draw(st.booleans())
        decays = st.sampled_from([
            spec.NoDecay(), spec.FixedDecay(), spec.FixedDecay(form="alibi", factor=0.5), spec.HeadDecay(),
            spec.ChannelDecay(gives_keys=gives), spec.ChannelDecay(rank=2, floor=0.25, temperature=2.0, bias=gives),
        ])  # fmt: skip
        return spec.LinearAttention(
            v_head_dim=draw(counts(2, 5, wild)), decay=draw(decays), norm=spec.RMSNorm(eps=eps),
            feature_map=draw(st.sampled_from(["none", "silu", "relu", "elu"])),
            norm_over=draw(st.sampled_from(["head", "all"])), gate=draw(st.sampled_from(["none", "silu", "sigmoid"])),
            **common | {"conv_kernel": draw(st.none() | st.just(kernel))},
        )  # fmt: skip
    if kind is spec.GatedDeltaNet:
        width, negative = draw(counts(2, 5, wild)), draw(st.booleans())
        decay, rank = draw(st.sampled_from(["head", "channel", "none"])), st.none() | st.integers(2, 4)
        gate = draw(st.sampled_from(["none", "silu", "sigmoid"]))
        of_gate = {} if gate == "none" else {"gate_rank": draw(rank), "gate_bias": draw(st.booleans())}
        return spec.GatedDeltaNet(
            num_key_heads=number, v_head_dim=width, negative_eigenvalues=negative, eps=eps, decay=decay, gate=gate,
            decay_rank=draw(rank) if decay == "channel" else None,
            decay_bound=None if decay == "none" else draw(st.none() | st.floats(-9, -0.5)), **of_gate, **common,
        )  # fmt: skip
    return spec.Mamba2(
        norm=draw(st.sampled_from(["after_gate", "before_gate", "none"])),
        in_scales=draw(st.none() | st.tuples(*5 * [st.floats(0.5, 2.0)])),
        num_groups=number, state_size=draw(counts(2, 4, wild)), bias=draw(st.booleans()), eps=eps,
        conv_bias=draw(st.booleans()), **common,
    )  # fmt: skip


@cache
def mixers(place: Place, wild: bool = False) -> SearchStrategy[spec.Mixer]:
    """Every mixer that fits a place; attention more often, for it has the most choices."""
    kinds = attentions(place, wild), latent_attentions(wild), recurrences(place), mambas(wild)
    causal_only = (
        rwkv7s(place, wild) | compressed_attentions(wild) | sparse_attentions(wild) if place.causal else st.nothing()
    )
    kinds = *kinds, linear_mixers(wild, place.causal) | causal_only
    alone = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 4]).flatmap(lambda kind: kinds[kind])
    if place.relative is not None and isinstance(place.relative[0], spec.RelativeVectors):
        alone |= disentangled_attentions(*place.relative)
    return st.sampled_from([True] * 7 + [False]).flatmap(lambda is_alone: alone if is_alone else together(alone, wild))


def rwkv7s(place: Place, wild: bool) -> SearchStrategy[spec.Mixer]:
    """RWKV-7 with each rank, in causal stacks."""
    if not place.causal:
        return st.nothing()
    heads = st.sampled_from([heads for heads in range(1, place.d_model + 1) if place.d_model % heads == 0])
    ranks = {name: counts(1, 4, wild) for name in ("decay_rank", "rate_rank", "gate_rank", "value_rank")}
    chunks = counts(1, CONTEXT, wild)
    epsilons = {"eps": positive(1e-4, 1e-2, wild), "length_eps": st.sampled_from([0.0, 1e-6])}
    return st.builds(spec.RWKV7, num_heads=heads, chunk_size=chunks, **epsilons, **ranks)


@st.composite
def compressed_attentions(draw: DrawFn, wild: bool = False) -> spec.CompressedAttention:
    """Windows with and without pooled keys, more and fewer of them than an index chooses."""
    groups, rotary_dim = draw(st.integers(1, 2)), 2 * draw(st.integers(1, 2))
    index = st.builds(
        spec.PooledIndex, top_k=counts(1, 6, wild), num_heads=st.integers(1, 4), head_dim=counts(4, 6, wild)
    )
    pooling = st.builds(spec.Pooling, rate=counts(1, 5, wild), overlap=st.booleans(), index=st.none() | index)
    return spec.CompressedAttention(
        num_heads=groups * draw(st.integers(1, 2)),
        head_dim=rotary_dim + draw(st.integers(0, 3)),
        rotary_dim=rotary_dim,
        query_rank=draw(counts(1, 8, wild)),
        window=draw(counts(1, 9, wild)),
        groups=groups,
        group_rank=draw(counts(1, 5, wild)),
        position=spec.Rotary(theta=draw(st.floats(10.0, 1e6)), interleaved=draw(st.booleans()),
                             scaling=draw(fixed_scalings(wild))),
        norm=draw(vector_norms(wild)),
        query_norm=draw(vector_norms(wild)),
        pooling=draw(st.none() | pooling),
    )  # fmt: skip


@st.composite
def sparse_attentions(draw: DrawFn, wild: bool = False) -> spec.NativeSparseAttention:
    """Compressed blocks with and without overlap and map, and more and fewer blocks than are selected."""
    keys, stride, first, local = (draw(st.integers(*ends)) for ends in ((1, 2), (1, 3), (0, 2), (1, 2)))
    size, theta = 2 * draw(st.integers(1, 3)), draw(st.floats(10.0, 1e6))
    return spec.NativeSparseAttention(
        num_heads=keys * draw(st.integers(1, 2)),
        num_kv_heads=keys,
        head_dim=size,
        v_head_dim=draw(st.none() | counts(1, 5, wild)),
        position=draw(st.none() | fixed_scalings(wild).map(lambda scaling: spec.Rotary(theta=theta, scaling=scaling))),
        compression=spec.BlockCompression(
            block=stride * draw(st.integers(1, 3)), stride=stride, hidden=draw(st.none() | counts(1, 5, wild))
        ),
        selection=spec.BlockSelection(
            block=stride * draw(st.integers(1, 2)), top_blocks=first + local + draw(st.integers(0, 2)),
            first_blocks=first, local_blocks=local,
        ),
        window=draw(counts(1, 9, wild)),
        shared_keys=draw(st.booleans()),
    )  # fmt: skip


def disentangled_attentions(
    vectors: spec.RelativeVectors, num_heads: int
) -> SearchStrategy[spec.DisentangledAttention]:
    """Attention whose scores see the distances of a stack's table."""
    directions = st.sampled_from([(True, True), (True, False), (False, True)])

    def of(directions: tuple[bool, bool], own: bool, bias: bool, dropout: float) -> spec.DisentangledAttention:
        return spec.DisentangledAttention(
            num_heads=num_heads, vectors=vectors, content_to_position=directions[0], position_to_content=directions[1],
            own_projections=own, key_bias=bias, dropout=dropout,
        )  # fmt: skip

    return st.builds(of, directions, st.booleans(), st.booleans(), probabilities())


@st.composite
def relative_vectors(draw: DrawFn, wild: bool = False) -> spec.RelativeVectors:
    """Every table of vectors of distances."""
    buckets = draw(st.integers(2, 8))
    longest = draw(st.none() | st.integers(buckets // 2 + 2, 40))
    return spec.RelativeVectors(num_buckets=buckets, max_distance=longest, norm=draw(vector_norms(wild)))


def together(mixers: SearchStrategy[spec.Mixer], wild: bool) -> SearchStrategy[spec.MixersTogether]:
    """One to three mixers side by side."""
    scales = st.sampled_from([None, "learned", (0.5, 2.0, -1.0)])

    def of(parts: list[spec.Mixer], scales: Any) -> spec.MixersTogether:
        cut = scales[: len(parts)] if isinstance(scales, tuple) else scales
        return spec.MixersTogether(parts=tuple(parts), scales=cut)

    return st.builds(of, st.lists(mixers, min_size=1, max_size=3), scales)


@cache
@st.composite
def blocks(
    draw: DrawFn, place: Place, wild: bool = False, mixer: spec.Mixer | None = None, cross: bool = False
) -> spec.Block:
    """Every block that fits a place; with a `mixer` that is given; one that looks at a source."""
    feedforward = draw(feedforwards(wild, place.reads_tokens, place.causal))
    without_mixer = mixer is None and not cross and not feedforward.is_absent
    if without_mixer and draw(st.sampled_from([False, False, False, True])):
        mixer = spec.NoMixer()
    mixer = mixer or draw(mixers(place, wild))
    norm = draw(norms(wild))
    by_content = draw(st.just({}) | st.fixed_dictionaries({"mixer_norm": norms(wild), "feedforward_norm": norms(wild)}))
    if not feedforward.reads_input:  # a norm of what it does not read would not be trained
        by_content = {**by_content, "feedforward_norm": spec.NoNorm()}
    norms_of = {"norm": norm, **by_content}
    wirings: list[spec.Wiring] = [
        spec.PreNorm(**norms_of), spec.PostNorm(**norms_of), spec.SandwichNorm(**norms_of, mixer_post_norm=norm),
        spec.OutputNorm(**norms_of), spec.Plain(), spec.Interpolated(**norms_of, rate=draw(positive(0.05, 1.0, wild))),
    ]  # fmt: skip
    if not mixer.is_absent:
        wirings.append(spec.Laurel(**norms_of, rank=draw(counts(1, 4, wild)), path_norm=draw(st.none() | norms(wild))))
    if not feedforward.is_absent and not mixer.is_absent and not cross:
        wirings.append(spec.ParallelResidual(**norms_of) if by_content else
                       spec.ParallelResidual(norm=norm, shared_norm=draw(st.booleans())))  # fmt: skip
    return spec.Block(
        wiring=draw(st.sampled_from(wirings)),
        mixer=mixer,
        cross_attention=draw(attentions(place, wild, cross=True)) if cross else None,
        feedforward=feedforward,
        dropout=draw(probabilities()),
        residual_scale=draw(st.just(1.0) | positive(0.1, 2.0, wild)),
        output_scale=draw(st.sampled_from([False, False, False, True])),  # which is for one residual stream
    )


@cache
@st.composite
def stacks(
    draw: DrawFn, d_model: int, wild: bool = False, causal: bool = True, cross: bool = False, reads_tokens: bool = True
) -> tuple[spec.Block, ...]:
    """Uniform, repeated in groups, cycled with a cut, and without any pattern; some layers look at a source."""
    biases = st.tuples(relative_biases(wild), st.integers(1, 4))
    divisors = [heads for heads in range(1, 5) if d_model % heads == 0]
    vectors = st.tuples(relative_vectors(wild), st.sampled_from(divisors))
    relative = draw(st.none() | biases if causal or cross else st.none() | biases | vectors)
    place = Place(d_model, causal, relative, reads_tokens)
    one = blocks(place, wild) | blocks(place, wild, cross=True) if cross else blocks(place, wild)
    group = draw(st.lists(one, min_size=1, max_size=2 if cross else 3))
    if cross and all(block.cross_attention is None for block in group):
        group.append(draw(blocks(place, wild, cross=True)))
    if draw(st.sampled_from([True, False, False])):
        return draw(with_a_reader(tuple(group)))
    if draw(st.booleans()):
        return spec.repeat(draw(st.integers(1, 2)), *group)
    if draw(st.booleans()):
        again = [block.replace(weights_of=index) for index, block in enumerate(group)]
        again[0] = again[0].replace(reinject=draw(st.sampled_from([False, True, "unit"])))
        return (*group, *again * draw(st.integers(1, 2)))
    return spec.cycle(draw(st.integers(len(group) if cross else 1, 4)), *group)


def can_be_read(mixer: spec.Attention) -> bool:
    """Whether a later layer may read its keys and values."""
    return mixer.index is None and not mixer.projects_globally and not mixer.position.reads_queries


@st.composite
def with_a_reader(draw: DrawFn, layers: tuple[spec.Block, ...]) -> tuple[spec.Block, ...]:
    """Layers, and one that reads the keys of one of them, or what its index selects, where one leaves any."""
    chosen = [
        index for index, block in enumerate(layers)
        if isinstance(block.mixer, spec.Attention | spec.LatentAttention)
        and isinstance(block.mixer.index, spec.LightningIndex)
    ]  # fmt: skip
    if chosen:
        source = draw(st.sampled_from(chosen))
        mixer = layers[source].mixer
        index = mixer.index.replace(from_layer=draw(st.sampled_from([source, source - len(layers)])))
        return (*layers, layers[source].replace(mixer=mixer.replace(index=index)))
    mixers = {index: block.mixer for index, block in enumerate(layers) if isinstance(block.mixer, spec.Attention)}
    if not (sources := [index for index, one in mixers.items() if can_be_read(one)]):
        return layers
    source = draw(st.sampled_from(sources))
    mixer, index = mixers[source], draw(st.sampled_from([source, source - len(layers)]))
    own = dict(bias=mixer.bias.replace(k=False, v=False), value_embedding=None, key_factors=False)
    reader = mixer.replace(keys_from=index, **own)
    return (*layers, layers[source].replace(mixer=reader))


@cache
@st.composite
def added_positions(draw: DrawFn, d_model: int, wild: bool = False) -> spec.EmbeddingPosition:
    """Every position that is added to vectors of `d_model` features."""
    offset = st.integers(0, 3)
    waves = st.builds(spec.Sinusoidal, theta=positive(10.0, 1e5, wild), interleaved=st.booleans(), offset=offset)
    learned = st.builds(spec.Learned, offset=st.integers(0, 2))
    return draw(st.one_of(st.just(spec.NoPosition()), learned, *([] if d_model % 2 else [waves])))


@cache
@st.composite
def embeddings(draw: DrawFn, d_model: int, wild: bool = False) -> spec.Embedding:
    """Every embedding that fits a model of width `d_model`."""
    return spec.Embedding(
        position=draw(added_positions(d_model, wild)),
        scale=draw(positive(0.25, 2.0, wild)),
        round_scale=draw(st.booleans()),
        num_token_types=draw(st.integers(0, 2**20) if wild else st.integers(0, 3)),
        norm=draw(norms(wild)),
        norm_first=draw(st.booleans()),
        dropout=draw(probabilities()),
    )


@cache
@st.composite
def embedded_stacks(
    draw: DrawFn, d_model: int, wild: bool = False, causal: bool = True
) -> tuple[spec.Embedding, tuple[spec.Block, ...]]:
    """An embedding and the layers of one stack, of which the last may read what the embedding gives it alone."""
    embedding, layers = draw(embeddings(d_model, wild)), draw(stacks(d_model, wild, causal=causal))
    if draw(st.sampled_from([False, False, True])):
        features = draw(counts(1, 5, wild))
        of_streams = causal and not any(block.output_scale or block.reinject == "unit" for block in layers)
        num_streams = draw(st.integers(1, 3)) if of_streams else 1
        reader = spec.PerLayerInput(
            features=features, activation=draw(activations(wild)), num_streams=num_streams,
            active=draw(st.integers(0, num_streams - 1)), input_norm=draw(vector_norms(wild)),
            added_norm=draw(vector_norms(wild)),
        )  # fmt: skip
        wiring = spec.PreNorm(norm=spec.NoNorm()) if num_streams > 1 else spec.OutputNorm(norm=draw(norms(wild)))
        embedding = embedding.replace(
            per_layer=spec.PerLayerEmbedding(
                features=features, norm=draw(vector_norms(wild)), rows=draw(st.none() | counts(1, 40, wild))
            )
        )
        layers = (*layers, spec.Block(wiring=wiring, mixer=spec.NoMixer(), feedforward=reader))
    return embedding, layers


@cache
@st.composite
def residuals(draw: DrawFn, layers: tuple[spec.Block, ...], wild: bool = False) -> spec.Residual:
    """Every residual wiring that fits some layers."""
    if any(block.output_scale or block.reinject == "unit" for block in layers):
        return spec.ResidualSum()
    num_streams = max(block.feedforward.reads_streams for block in layers) or draw(counts(1, 3, wild))
    active = draw(st.integers(0, num_streams - 1))
    updates = spec.AltUp(num_streams=num_streams, active=active, norm=draw(vector_norms(wild)))
    if any(block.feedforward.reads_streams for block in layers):
        return updates
    if not all(block.wiring.adds_to_stream for block in layers):
        return draw(st.sampled_from([spec.ResidualSum(), updates]))
    streams = st.builds(
        spec.Streams, num_streams=counts(1, 3, wild), sinkhorn_steps=st.integers(0, 3),
        exit=st.sampled_from(["weighted", "mean"]), write_scale=positive(0.5, 2.0, wild),
    )  # fmt: skip
    gated = st.builds(
        spec.GatedStreams, num_streams=counts(1, 3, wild), rank=counts(1, 5, wild), unit_offset=st.booleans()
    )
    depth = st.builds(
        spec.DepthAttention,
        layers_per_block=counts(1, 3, wild),
        normed_values=st.booleans(),
        scaled=st.booleans(),
        norm_weight=st.booleans(),
    )
    grows = not any(
        block.wiring.reads_first or block.reads_again is not None or block.weights_of == 0 for block in layers
    )
    normed = st.builds(spec.NormedSum, carried=vector_norms(wild), added=vector_norms(wild))
    sums = st.sampled_from([spec.ResidualSum(), spec.ScaledSum()]) | normed
    return draw(st.one_of(sums, streams, gated, st.just(updates), *([depth] if grows else [])))


@cache
def initializations(wild: bool = False) -> SearchStrategy[spec.Initialization]:
    """Every scheme."""
    std = positive(0.001, 1.0, wild)
    return st.one_of(
        st.builds(spec.NormalInitialization, std=std),
        st.builds(spec.GPT2Initialization, std=std),
        st.builds(spec.MuPInitialization, std=std),
        st.just(spec.XavierInitialization()),
    )


@cache
def transforms(norm: SearchStrategy[spec.Norm], wild: bool = False) -> SearchStrategy[spec.HeadTransform | None]:
    """A layer before the logits, or none."""
    return st.none() | st.builds(spec.HeadTransform, activation=activations(wild), norm=norm, bias=st.booleans())


@cache
def language_model_heads(wild: bool = False) -> SearchStrategy[spec.LanguageModelHead]:
    """Every head that gives the next token."""
    scale, softcap = positive(0.25, 2.0, wild), st.none() | positive(1.0, 30.0, wild)
    return st.builds(
        spec.LanguageModelHead,
        tied=st.booleans(), bias=st.booleans(), scale=scale, gain=gains(wild), softcap=softcap,
        transform=transforms(norms(wild), wild),
    )  # fmt: skip


@cache
def classification_heads(wild: bool = False) -> SearchStrategy[spec.ClassificationHead]:
    """Every head that gives a class."""
    transform = transforms(vector_norms(wild), wild)
    return st.builds(
        spec.ClassificationHead, num_classes=counts(1, 5, wild), dropout=probabilities(), transform=transform
    )


@cache
def encoder_heads(wild: bool = False) -> SearchStrategy[spec.EncoderHead]:
    """Every head of an encoder of text."""
    masked = st.builds(
        spec.MaskedLanguageModelHead,
        activation=activations(wild), norm=norms(wild), tied=st.booleans(), bias=st.booleans(),
        dense_bias=st.booleans(),
    )  # fmt: skip
    plain = st.builds(spec.MaskedLogitsHead, tied=st.booleans(), bias=st.booleans(), shifted=st.booleans())
    of_classes = classification_heads(wild), token_class_heads(wild)
    others = st.just(spec.NoHead()), sentence_heads(wild)
    return st.one_of(masked, plain, language_model_heads(wild), *of_classes, *others)


@cache
def sentence_heads(wild: bool = False) -> SearchStrategy[spec.SentenceEmbeddingHead]:
    """Every head that gives vectors of texts."""
    modes = st.sampled_from(("first", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"))
    layers = st.builds(spec.DenseLayer, width=counts(1, 5, wild), activation=activations(wild), bias=st.booleans())
    return st.builds(
        spec.SentenceEmbeddingHead,
        pooling=st.lists(modes, min_size=1, max_size=3, unique=True).map(tuple),
        layers=st.lists(layers, max_size=2).map(tuple),
        normalize=st.booleans(),
    )


@cache
def token_class_heads(wild: bool = False) -> SearchStrategy[spec.EncoderHead]:
    """Every head that gives classes of tokens."""
    common: dict[str, Any] = {"dropout": probabilities(), "bias": st.booleans()}
    common["transform"] = transforms(vector_norms(wild), wild)
    of_tokens = st.builds(spec.TokenClassificationHead, num_classes=counts(1, 5, wild), **common)
    return of_tokens | st.builds(spec.SpanHead, **common)


@cache
def vocabularies(wild: bool) -> SearchStrategy[int]:
    """The tame one, or any."""
    return st.integers(1, 2**24) if wild else st.just(VOCABULARY)


@cache
def contexts(wild: bool) -> SearchStrategy[int]:
    """The tame one, or any."""
    return st.integers(1, 2**31) if wild else st.just(CONTEXT)


@cache
def further_tokens(d_model: int, wild: bool = False) -> SearchStrategy[spec.FurtherTokens]:
    """Predictions of one to three tokens after the next, each by a block of its own."""
    return st.builds(
        spec.FurtherTokens,
        count=counts(1, 3, wild).map(lambda count: min(count, 8)),
        block=blocks(Place(d_model, reads_tokens=False), wild),
        norm=vector_norms(wild),
        loss_weight=positive(0.1, 1.0, wild),
    )


@cache
@st.composite
def decoders(draw: DrawFn, wild: bool = False) -> spec.Decoder:
    """Every decoder."""
    d_model = draw(st.sampled_from(WIDTHS))
    embedding, layers = draw(embedded_stacks(d_model, wild))
    return spec.Decoder(
        name=draw(st.text(max_size=20)),
        vocab_size=draw(vocabularies(wild)),
        context_length=draw(contexts(wild)),
        d_model=d_model,
        embedding=embedding,
        layers=layers,
        residual=draw(residuals(layers, wild)),
        final_norm=draw(norms(wild)),
        head=draw(language_model_heads(wild)),
        further_tokens=draw(st.none() | further_tokens(d_model, wild)),
        initialization=draw(initializations(wild)),
    )


@cache
@st.composite
def encoders(draw: DrawFn, wild: bool = False) -> spec.Encoder:
    """Every encoder of text."""
    d_model = draw(st.sampled_from(WIDTHS))
    embedding, layers = draw(embedded_stacks(d_model, wild, causal=False))
    pooler, head = draw(st.booleans()), draw(encoder_heads(wild))
    late = ("late",) if head.classifies and not pooler else ()
    return spec.Encoder(
        vocab_size=draw(vocabularies(wild)),
        context_length=draw(contexts(wild)),
        d_model=d_model,
        embedding=embedding,
        layers=layers,
        final_norm=draw(norms(wild)),
        pooling=draw(st.sampled_from(("first", "mean", *late))),
        pooler=pooler,
        head=head,
        initialization=draw(initializations(wild)),
    )


@cache
@st.composite
def encoder_decoders(draw: DrawFn, wild: bool = False) -> spec.EncoderDecoder:
    """With cross-attention, a bridge of states, or both."""
    d_model = draw(st.sampled_from(WIDTHS))
    bridged, shared, unread = draw(st.booleans()), draw(st.booleans()), False
    if bridged:
        encoder, decoder = draw(bridged_layers(d_model, wild))
        if all(block.cross_attention is None for block in decoder):  # nothing reads the encoder's vectors
            ends, unread = draw(st.sampled_from([spec.Plain(), spec.PreNorm(norm=draw(norms(wild)))])), True
            encoder = (*encoder[:-1], encoder[-1].replace(wiring=ends, feedforward=spec.NoFeedForward()))
    else:
        encoder, decoder = draw(stacks(d_model, wild, causal=False)), draw(stacks(d_model, wild, cross=True))
    return spec.EncoderDecoder(
        vocab_size=draw(vocabularies(wild)),
        source_vocab_size=None if shared else draw(st.none() | (st.integers(1, 2**24) if wild else st.just(9))),
        context_length=draw(contexts(wild)),
        d_model=d_model,
        embedding=spec.PairEmbedding(**dict(draw(embeddings(d_model, wild))) | {"kind": "pair", "shared": shared}),
        encoder=spec.Stack(layers=encoder, final_norm=spec.NoNorm() if unread else draw(norms(wild))),
        decoder=spec.Stack(layers=decoder, final_norm=draw(norms(wild))),
        state_bridge=spec.StateBridge() if bridged else None,
        head=draw(language_model_heads(wild)),
        initialization=draw(initializations(wild)),
    )


@cache
@st.composite
def bridged_layers(
    draw: DrawFn, d_model: int, wild: bool = False
) -> tuple[tuple[spec.Block, ...], tuple[spec.Block, ...]]:
    """Recurrent layers of an encoder and of a decoder that starts from their last states."""
    encoder, decoder = [], []

    def without_memory(place: Place, mixer: spec.Mixer, cross: bool = False) -> spec.Block:
        # a bridge hands on the states of mixers alone
        block = draw(blocks(place, wild, mixer, cross=cross))
        return (
            block
            if block.feedforward.separates_documents
            else block.replace(feedforward=spec.MLP(d_ff=1, activation=spec.ReLU()))
        )

    for _ in range(draw(st.integers(1, 2))):
        source = draw(recurrences(Place(d_model, causal=False)))
        target = source.replace(bidirectional=False)
        encoder.append(without_memory(Place(d_model, causal=False), source))
        decoder.append(without_memory(Place(d_model), target, draw(st.booleans())))
    return tuple(encoder), tuple(decoder)


@cache
@st.composite
def ngrams(draw: DrawFn, wild: bool = False) -> spec.NGram:
    """Every n-gram model."""
    d_model, n = draw(st.sampled_from(WIDTHS)), draw(counts(1, 5, wild))
    hidden = tuple(draw(st.lists(counts(1, 12, wild) | st.just(d_model), max_size=2)))
    head = draw(language_model_heads(wild))
    fits = (hidden[-1] if hidden else n * d_model) == d_model
    return spec.NGram(
        vocab_size=draw(vocabularies(wild)),
        context_length=draw(contexts(wild)),
        n=n,
        d_model=d_model,
        hidden=hidden,
        activation=draw(activations(wild)),
        head=head if fits else head.replace(tied=False),
        initialization=draw(initializations(wild)),
    )


@cache
@st.composite
def sized_stacks(draw: DrawFn, d_model: int, wild: bool = False) -> spec.SizedStack:
    """One side of a MegaByte."""
    layers = draw(stacks(d_model, wild, reads_tokens=False))
    return spec.SizedStack(d_model=d_model, layers=layers, final_norm=draw(norms(wild)))


@cache
@st.composite
def megabytes(draw: DrawFn, wild: bool = False) -> spec.MegaByte:
    """Every MegaByte, its global model with a few features for each byte of a patch."""
    patch_size = draw(st.integers(1, 2**10) if wild else st.sampled_from([1, 2, 4, 8]))
    return spec.MegaByte(
        vocab_size=draw(vocabularies(wild)),
        context_length=patch_size * draw(st.integers(1, 2**20)) if wild else CONTEXT,
        patch_size=patch_size,
        global_model=draw(sized_stacks(patch_size * draw(st.integers(1, 3)), wild)),
        local_model=draw(sized_stacks(draw(st.sampled_from(WIDTHS)), wild)),
        head=draw(language_model_heads(wild)),
        initialization=draw(initializations(wild)),
    )


@cache
@st.composite
def vision_encoders(draw: DrawFn, wild: bool = False) -> spec.VisionEncoder:
    """Every encoder of pictures."""
    d_model, patch_size = draw(st.sampled_from(WIDTHS)), draw(st.integers(1, 2**9) if wild else st.integers(1, 3))
    return spec.VisionEncoder(
        image_size=patch_size * draw(st.integers(1, 2**10) if wild else st.integers(1, 4)),
        patch_size=patch_size,
        num_channels=draw(counts(1, 3, wild)),
        d_model=d_model,
        class_token=draw(st.booleans()),
        embedding=draw(embeddings(d_model, wild)).replace(num_token_types=0),
        layers=draw(stacks(d_model, wild, causal=False, reads_tokens=False)),
        final_norm=draw(norms(wild)),
        pooler=draw(st.booleans()),
        head=draw(classification_heads(wild) | st.just(spec.NoHead())),
        initialization=draw(initializations(wild)),
    )


@cache
def causal_models(wild: bool = False) -> SearchStrategy[spec.CausalSpec]:
    """Every model that writes text token by token; decoders more often."""
    return st.sampled_from([0, 0, 0, 0, 1, 2]).flatmap(
        lambda kind: (decoders(wild), ngrams(wild), megabytes(wild))[kind]
    )


@cache
def models(wild: bool = False) -> SearchStrategy[spec.ModelSpec]:
    """Every model."""
    return st.one_of(causal_models(wild), encoders(wild), encoder_decoders(wild), vision_encoders(wild))
