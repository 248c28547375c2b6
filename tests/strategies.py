"""Every part that a specification can name, drawn at random.

Models drawn here are small enough to run and tame enough for float32; `wild=True` draws every number that a file may
hold, for tests that read and write but do not compute.
"""

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from archetype import spec

WIDTHS = (4, 6, 8, 9, 12)
CONTEXT = 16
VOCABULARY = 13
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


def positive(low: float, high: float, wild: bool) -> SearchStrategy[float]:
    """A positive number: from a tame range, or any that is finite."""
    return st.floats(0, exclude_min=True, allow_infinity=False) if wild else st.floats(low, high)


def counts(low: int, high: int, wild: bool) -> SearchStrategy[int]:
    """A size: from a tame range, or any that is allowed."""
    return st.integers(1, 2**20) if wild else st.integers(low, high)


def probabilities() -> SearchStrategy[float]:
    """A rate of dropout."""
    return st.floats(0, 1, exclude_max=True)


def norms(wild: bool = False) -> SearchStrategy[spec.Norm]:
    """Every norm."""
    eps = positive(1e-6, 1e-2, wild)
    return st.one_of(
        st.just(spec.NoNorm()),
        st.builds(spec.LayerNorm, eps=eps, bias=st.booleans()),
        st.builds(spec.RMSNorm, eps=eps),
    )


def activations(wild: bool = False) -> SearchStrategy[spec.Activation]:
    """Every activation."""
    return st.one_of(st.sampled_from(ACTIVATIONS), st.builds(spec.Swish, beta=positive(0.1, 4.0, wild)))


def feedforwards(wild: bool = False) -> SearchStrategy[spec.FeedForward]:
    """Every feed-forward part."""
    rule = st.builds(spec.EightThirds, multiple_of=counts(1, 16, wild))
    widths = st.one_of(counts(1, 24, wild), rule)
    return st.one_of(
        st.builds(part, d_ff=widths, activation=activations(wild), bias=st.booleans())
        for part in (spec.MLP, spec.GatedMLP)
    )


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


def scalings(wild: bool = False) -> SearchStrategy[spec.RotaryScaling]:
    """Every scaling. A tame dynamic one starts beyond `CONTEXT`: past its start, earlier logits change by design."""
    factor = positive(1.0, 16.0, wild)
    beyond = counts(CONTEXT, 4 * CONTEXT, wild)
    return st.one_of(
        st.just(spec.NoScaling()),
        st.builds(spec.LinearScaling, factor=factor),
        st.builds(spec.DynamicScaling, factor=factor, original_context_length=beyond),
        yarn_scalings(wild),
        llama3_scalings(wild),
    )


@st.composite
def rotaries(draw: DrawFn, head_dim: int, wild: bool = False) -> spec.Rotary:
    """Rotary positions that fit heads of `head_dim` features."""
    dims = st.integers(1, head_dim // 2).map(lambda pairs: 2 * pairs)
    return spec.Rotary(
        theta=draw(st.floats(10.0, 1e6)),
        dim=draw(dims if head_dim % 2 else st.none() | dims),
        interleaved=draw(st.booleans()),
        scaling=draw(scalings(wild)),
    )


@st.composite
def attentions(draw: DrawFn, d_model: int, wild: bool = False) -> spec.Attention:
    """Attention that fits a model of width `d_model`."""
    num_heads = draw(st.integers(1, 4))
    given_dims = st.integers(1, 6)
    head_dim = draw(given_dims if d_model % num_heads else st.none() | given_dims)
    size = head_dim or d_model // num_heads
    rotary = [rotaries(size, wild)] if size > 1 else []
    return spec.Attention(
        num_heads=num_heads,
        num_kv_heads=draw(st.none() | st.sampled_from([k for k in range(1, num_heads + 1) if num_heads % k == 0])),
        head_dim=head_dim,
        bias=draw(st.builds(spec.ProjectionBiases, **dict.fromkeys("qkvo", st.booleans()))),
        scale=draw(st.none() | positive(0.1, 1.5, wild)),
        position=draw(st.one_of(st.just(spec.NoPosition()), *rotary)),
        dropout=draw(probabilities()),
    )


def wirings(wild: bool = False) -> SearchStrategy[spec.Wiring]:
    """Every wiring."""
    return st.one_of(
        st.builds(spec.PreNorm, norm=norms(wild)),
        st.builds(spec.PostNorm, norm=norms(wild)),
        st.builds(spec.ParallelResidual, norm=norms(wild), shared_norm=st.booleans()),
    )


def blocks(d_model: int, wild: bool = False) -> SearchStrategy[spec.Block]:
    """Every block."""
    return st.builds(
        spec.Block,
        wiring=wirings(wild),
        mixer=attentions(d_model, wild),
        feedforward=feedforwards(wild),
        dropout=probabilities(),
    )


@st.composite
def stacks(draw: DrawFn, d_model: int, wild: bool = False) -> tuple[spec.Block, ...]:
    """Uniform, repeated in groups, cycled with a cut, and without any pattern."""
    group = draw(st.lists(blocks(d_model, wild), min_size=1, max_size=3))
    if draw(st.booleans()):
        return spec.repeat(draw(st.integers(1, 3)), *group)
    return spec.cycle(draw(st.integers(1, 4)), *group)


@st.composite
def embeddings(draw: DrawFn, d_model: int, wild: bool = False) -> spec.Embedding:
    """Every embedding that fits a model of width `d_model`."""
    sinusoidal = [] if d_model % 2 else [st.builds(spec.Sinusoidal, theta=positive(10.0, 1e5, wild))]
    return spec.Embedding(
        position=draw(st.one_of(st.just(spec.NoPosition()), st.just(spec.Learned()), *sinusoidal)),
        scale=draw(positive(0.25, 2.0, wild)),
        norm=draw(norms(wild)),
        dropout=draw(probabilities()),
    )


def initializations(wild: bool = False) -> SearchStrategy[spec.Initialization]:
    """Every scheme."""
    std = positive(0.001, 1.0, wild)
    return st.one_of(
        st.builds(spec.NormalInitialization, std=std),
        st.builds(spec.GPT2Initialization, std=std),
        st.just(spec.XavierInitialization()),
    )


@st.composite
def decoders(draw: DrawFn, wild: bool = False) -> spec.Decoder:
    """Every decoder."""
    d_model = draw(st.sampled_from(WIDTHS))
    return spec.Decoder(
        name=draw(st.text(max_size=20)),
        vocab_size=draw(st.integers(1, 2**24)) if wild else VOCABULARY,
        context_length=draw(st.integers(1, 2**31)) if wild else CONTEXT,
        d_model=d_model,
        embedding=draw(embeddings(d_model, wild)),
        layers=draw(stacks(d_model, wild)),
        final_norm=draw(norms(wild)),
        head=draw(st.builds(spec.LanguageModelHead, tied=st.booleans(), bias=st.booleans())),
        initialization=draw(initializations(wild)),
    )
