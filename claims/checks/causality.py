"""Causality: no decoder's output depends on a later token; models that are not causal are detected."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from archetype.models.block.spec import OutputNorm, ParallelResidual, PostNorm, PreNorm, SandwichNorm
from archetype.models.decoder.spec import Decoder
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.parts.attention.spec import OutputGate
from archetype.parts.embedding.spec import Embedding
from archetype.parts.experts.module import Experts
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.linear_attention.spec import ChannelDecay, LinearAttention
from archetype.parts.mamba.spec import Mamba
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import BatchNorm, LayerNorm, RMSNorm
from archetype.parts.pattern.spec import Fixed, Full, GlobalWindow, Strided, Window
from archetype.parts.position.spec import Alibi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition
from archetype.studies.outcome import Control, Outcome
from archetype.studies.registry import check
from claims.checks.batch_norm import leak
from claims.checks.permutation import encoder
from claims.checks.window import decoded
from claims.small_models import (
    ATTENTION,
    EXACT,
    GATED,
    WRONG,
    block,
    decoder,
    normal,
    random_model,
    random_tokens,
    randomize,
    relative_error,
)

LENGTH, SEEN = 18, 11  # tokens, and those before the change, whose outputs are compared
LATENT = LatentAttention(num_heads=4, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
PATTERNS: tuple[Pattern, ...] = (
    Full(), Window(size=5), Strided(stride=4), Fixed(stride=4, num_summary=1),
    GlobalWindow(size=4),
)  # fmt: skip
POSITIONS: tuple[MixerPosition, ...] = (
    NoPosition(), Rotary(), Rotary(interleaved=True, dim=2), Alibi(),
    RelativeBias(num_buckets=8, max_distance=16),
)  # fmt: skip
OTHER_MIXERS: tuple[Mixer, ...] = (
    ATTENTION.replace(score="additive"), ATTENTION.replace(softcap=5.0), ATTENTION.replace(sinks=True),
    ATTENTION.replace(gate=OutputGate()), ATTENTION.replace(qk_norm=LayerNorm(), num_kv_heads=1),
    LATENT, LATENT.replace(query=LowRankQuery(rank=7)), RNN(), LSTM(), GRU(),
    Mamba(state_size=3), Mamba2(num_heads=3, head_dim=4, state_size=5, chunk_size=8),
    GatedDeltaNet(num_heads=3, head_dim=4, v_head_dim=6, chunk_size=8), ShortConvolution(),
    LinearAttention(num_heads=3, head_dim=4, decay=ChannelDecay(), chunk_size=8),
)  # fmt: skip
NORMS: tuple[Norm, ...] = (LayerNorm(), RMSNorm(), RMSNorm(unit_offset=True), BatchNorm())
WIRINGS = (PreNorm, PostNorm, SandwichNorm, OutputNorm, ParallelResidual)


def mixers() -> Iterator[Mixer]:
    """Yield every kind of mixer, attention with every valid combination of position and pattern."""
    for pattern in PATTERNS:
        for position in POSITIONS:
            if not (isinstance(position, Alibi) and isinstance(pattern, GlobalWindow)):
                yield ATTENTION.replace(pattern=pattern, position=position)
    yield from OTHER_MIXERS


def decoders(every: int) -> Iterator[Decoder]:
    """Yield decoders of two layers: every mixer with every `every`-th pair of norm and wiring."""
    for number, mixer in enumerate(mixers()):
        # each mixer starts at another pair, so that even a large step tries all of them
        pairs = [(norm, wiring) for norm in NORMS for wiring in WIRINGS]
        for norm, wiring in pairs[number % every :: every]:
            layer = block(mixer=mixer, wiring=wiring(norm=norm))
            yield decoder(layer, layer, final_norm=norm)
    for position in (Learned(), Sinusoidal()):
        yield decoder(block(), block(), embedding=Embedding(position=position))


def violations(model: Decoder, dtype: torch.dtype) -> tuple[float, float, float]:
    """Return the number of changed outputs, the largest gradient, and the error of reading in chunks for a decoder.

    Outputs before a position are compared bit for bit when later tokens change; the gradient is by all later vectors.
    Rows of a batch that end earlier, and so are padded, are compared as well.
    """
    built = random_model(model, dtype)
    tokens = random_tokens(model, 2, LENGTH)
    changed = torch.cat((tokens[:, :SEEN], (tokens[:, SEEN:] + 1) % model.vocab_size), 1)
    before, after = built(tokens).logits, built(changed).logits
    lengths = torch.tensor([LENGTH, SEEN])
    padded = [built(text, num_tokens=lengths).logits[1, :SEEN] for text in (tokens, changed)]
    differing = (before[:, :SEEN] != after[:, :SEEN]).sum() + (padded[0] != padded[1]).sum()
    x = normal(2, LENGTH, model.d_model, dtype=dtype, seed=1).requires_grad_()
    context = ForwardContext.of(x)
    y = built.final_norm(built.run(x, context), context)
    (gradient,) = torch.autograd.grad((y * normal(*y.shape, dtype=dtype, seed=2))[:, :SEEN].sum(), x)
    assert (before[:, SEEN:] != after[:, SEEN:]).any(-1).all()  # later outputs do change
    return float(differing), gradient[:, SEEN:].abs().max().item(), relative_error(decoded(built, tokens, 5), before)


@check("causality.future", claim=20, part="a")
def future(quick: bool) -> Outcome:
    """Outputs before a token are bit-identical when later tokens change, and their gradients by later vectors are 0."""
    models = list(decoders(20))[::2] if quick else list(decoders(1))
    worst = [0.0, 0.0, 0.0]
    for model in models:
        worst = [max(pair) for pair in zip(worst, violations(model, torch.float64), strict=True)]
    dense = [violations(model, torch.float32) for model in models[:1]]
    sparse = block(feedforward=MixtureOfExperts(num_experts=6, experts_per_token=2, expert=GATED))
    experts = relative_change(random_model(decoder(sparse, sparse)))
    encoders = relative_change(random_model(encoder(ATTENTION)))
    by_expert = relative_change(with_expert_choice())
    return Outcome(
        worst[0] == 0 and worst[1] == 0 and worst[2] <= EXACT[torch.float64] and dense[0][:2] == (0.0, 0.0)
        and experts <= EXACT[torch.float64],
        f"of {len(models)} decoders, all mixers with positions, patterns, norms and "
        "wirings, no output changes with a later token, in any bit, nor has a gradient by one; chunks with a cache "
        "agree "
        f"with the whole to {worst[2]:.1e}; with experts, whose products change shape, to {experts:.1e}",
        {"outputs_that_change": worst[0], "gradient": worst[1], "chunks": worst[2], "experts": experts},
        (
            Control("an encoder", encoders, WRONG),
            Control("BatchNorm in training", leak(BatchNorm(), True)[0], WRONG),
            Control("experts that choose their tokens", by_expert, WRONG),
        ),
    )  # fmt: skip


def relative_change(model: Any) -> float:
    """Return the relative change of the vectors before a position when later tokens change."""
    tokens = random_tokens(model.spec, 2, LENGTH)
    changed = torch.cat((tokens[:, :SEEN], (tokens[:, SEEN:] + 1) % model.spec.vocab_size), 1)
    before, after = (model(text).hidden[:, :SEEN] for text in (tokens, changed))
    return relative_error(after, before)


class ExpertChoice(nn.Module):
    """Four experts that each take the half of a text's tokens that suits it best, including later ones (Zhou 2022)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.router = nn.Linear(d_model, 4, bias=False)
        self.experts = Experts(GATED, 4, d_model)

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        affinities = self.router(x).softmax(-1)  # (B, T, E)
        # (B, T, E): 1 for the T / 2 tokens of each expert
        taken = torch.zeros_like(affinities).scatter(1, affinities.topk(x.shape[1] // 2, dim=1).indices, 1.0)
        everyone = torch.arange(4).expand(x.shape[0] * x.shape[1], -1)
        y: Tensor = self.experts(x.flatten(0, 1), everyone, (affinities * taken).flatten(0, 1))
        return y.view_as(x)


def with_expert_choice() -> Any:
    model = random_model(decoder(block(), block()))
    for layer in model.blocks:
        layer.feedforward = ExpertChoice(model.spec.d_model)
    return randomize(model.double())
