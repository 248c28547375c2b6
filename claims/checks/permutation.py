"""Permuted texts: an encoder without positions is equivariant; positions, windows and masks break the symmetry."""

import torch
from torch import Tensor

from archetype.models.block.spec import Block, PostNorm, PreNorm, SandwichNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP as MLPSpec
from archetype.parts.head.spec import NoHead
from archetype.parts.norm.spec import BatchNorm, LayerNorm, NoNorm, RMSNorm
from archetype.parts.pattern.spec import Window
from archetype.parts.position.spec import Alibi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.position import EmbeddingPosition, MixerPosition
from archetype.roles.wiring import Wiring
from archetype.studies.outcome import Control, Outcome
from archetype.studies.registry import check
from claims.small_models import EXACT, WRONG, random_model, random_tokens, relative_error

LENGTH = 24
MLP = MLPSpec(d_ff=32, activation="gelu", bias=True)
POSITIONS: dict[str, MixerPosition] = {
    "rotary": Rotary(), "alibi": Alibi(), "relative bias": RelativeBias(num_buckets=8, max_distance=16),
}  # fmt: skip
ADDED: dict[str, EmbeddingPosition] = {"learned": Learned(), "sinusoidal": Sinusoidal()}
NORMS: tuple[Norm, ...] = (LayerNorm(), RMSNorm(), BatchNorm(), NoNorm())


def encoder(mixer: Mixer, wiring: Wiring | None = None, position: EmbeddingPosition | None = None) -> Encoder:
    """Return an encoder of two layers."""
    layer = Block(wiring=wiring or PreNorm(norm=LayerNorm()), mixer=mixer, feedforward=MLP)
    return Encoder(
        vocab_size=31, context_length=LENGTH, d_model=16, layers=(layer, layer), final_norm=LayerNorm(),
        embedding=Embedding(position=position or NoPosition()), head=NoHead(),
    )  # fmt: skip


def hidden(model: ModelSpec, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    vectors: Tensor = random_model(model, dtype)(tokens).hidden
    return vectors


def asymmetry(model: ModelSpec, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """Return the relative errors between f(P x) and P f(x), and between their means over positions."""
    tokens = random_tokens(model, 2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    permuted, plain = hidden(model, tokens[:, order], dtype), hidden(model, tokens, dtype)
    return relative_error(permuted, plain[:, order]), relative_error(permuted.mean(1), plain.mean(1))


@check("permutation.encoder", claim=24, part="a")
def equivariant(quick: bool) -> Outcome:
    """An encoder without positions gives permuted vectors for a permuted text; positions, windows and masks do not."""
    attention = Attention(num_heads=4, num_kv_heads=2)
    wirings = [kind(norm=norm) for norm in NORMS for kind in (PreNorm, PostNorm, SandwichNorm)]
    mixers: list[Mixer] = [attention, attention.replace(softcap=5.0), attention.replace(qk_norm=RMSNorm())]
    symmetric = [encoder(mixer) for mixer in mixers] + [
        encoder(attention, wiring) for wiring in wirings[:: 5 if quick else 1]
    ]
    errors, pooled = {}, 0.0
    for dtype in EXACT:
        pairs = [asymmetry(model, dtype) for model in symmetric]
        errors[dtype] = max(error for error, _ in pairs)
        pooled = max(pooled, pairs[0][1]) if dtype == torch.float64 else pooled
    broken = {
        f"{name} positions": encoder(attention.replace(position=position)) for name, position in POSITIONS.items()
    }
    broken |= {f"{name} positions": encoder(attention, position=position) for name, position in ADDED.items()}
    broken["a window"] = encoder(attention.replace(pattern=Window(size=6)))
    layer = Block(wiring=PreNorm(norm=LayerNorm()), mixer=attention, feedforward=MLP)
    causal: ModelSpec = Decoder(
        vocab_size=31, context_length=LENGTH, d_model=16, layers=(layer, layer), final_norm=LayerNorm()
    )
    controls = [
        Control(name, asymmetry(model)[0], WRONG) for name, model in (broken | {"a causal mask": causal}).items()
    ]
    return Outcome(
        all(error <= EXACT[dtype] for dtype, error in errors.items()) and pooled <= EXACT[torch.float64],
        f"f(P x) and P f(x) differ by {errors[torch.float64]:.1e} in float64 and {errors[torch.float32]:.1e} in "
        f"float32 for {len(symmetric)} encoders without positions, means over positions by {pooled:.1e}; a causal mask "
        "alone "
        f"breaks it ({controls[-1].error:.2f}): decoders without positions can tell the order",
        {"float64": errors[torch.float64], "float32": errors[torch.float32], "pooled": pooled},
        tuple(controls),
    )  # fmt: skip
