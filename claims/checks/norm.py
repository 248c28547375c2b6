"""Pre- and post-norm: gradients by depth. RMSNorm and LayerNorm: equality on centered vectors, and time."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archetype.models.block.spec import Block, PostNorm, PreNorm
from archetype.models.build import build
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import XavierInitialization
from archetype.nn.registry import build_norm
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP
from archetype.parts.norm.spec import LayerNorm, NoNorm, RMSNorm
from archetype.roles.norm import Norm
from archetype.roles.wiring import Wiring
from archetype.spec.repeats import repeat
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.fit import mean_interval, power_law
from claims.small_models import (
    EXACT,
    WRONG,
    block,
    decoder,
    normal,
    random_model,
    random_tokens,
    randomize,
    relative_error,
)
from claims.timing import compare, refuse_if_busy

DEPTHS = (2, 4, 8, 16, 32)
LENGTH = 32


def stack(wiring: Wiring, depth: int, d_model: int, final_norm: Norm) -> Decoder:
    """Return a decoder of `depth` equal layers with Glorot's initialization."""
    layer = Block(
        wiring=wiring,
        mixer=Attention(num_heads=4),
        feedforward=MLP(d_ff=4 * d_model, activation="relu"),
    )
    return Decoder(
        vocab_size=64, context_length=LENGTH, d_model=d_model, layers=repeat(depth, layer), final_norm=final_norm,
        initialization=XavierInitialization(),
    )  # fmt: skip


def last_gradient(model: Decoder, seed: int) -> float:
    """Return the norm of the loss's gradient by the last feed-forward part's second matrix, at initialization."""
    built: Any = build(model, seed)
    tokens = random_tokens(model, 4, LENGTH + 1, seed)
    nn.functional.cross_entropy(built(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return float(built.blocks[-1].feedforward.down.weight.grad.norm())


@check("norm.gradient_by_depth", claim=3, part="a", kind="initialization")
def gradient_by_depth(quick: bool) -> Outcome:
    """As initialized the last layer's gradient stays with depth after post-norm, and falls as its root before it."""
    d_model, seeds, depths = (16, 2, DEPTHS[:-1]) if quick else (64, 8, DEPTHS)
    norm = LayerNorm()
    arms = {
        "post-norm": (PostNorm(norm=norm), NoNorm()),
        "pre-norm": (PreNorm(norm=norm), norm),
        "pre-norm without its final norm": (PreNorm(norm=norm), NoNorm()),
    }
    slopes: dict[str, list[float]] = {}
    curves = []
    for name, (wiring, final_norm) in arms.items():
        stacks = [stack(wiring, depth, d_model, final_norm) for depth in depths]
        norms = [[last_gradient(model, seed) for model in stacks] for seed in range(seeds)]
        slopes[name] = [power_law(depths, one).slope for one in norms]
        means = tuple(sum(column) / seeds for column in zip(*norms, strict=True))
        axes: Axes = {"x_name": "layers", "y_name": "gradient norm of the last layer", "log_x": True, "log_y": True}
        curves.append(Curve(name, tuple(map(float, depths)), means, **axes))
    post, pre, bare = (sum(values) / seeds for values in slopes.values())
    (post_low, post_high), (pre_low, pre_high) = (mean_interval(slopes[name]) for name in ("post-norm", "pre-norm"))
    return Outcome(
        abs(post) <= 0.1 and abs(pre + 0.5) <= 0.1,
        f"over {depths[0]} to {depths[-1]} layers the norm grows as depth to the power {post:.2f} [{post_low:.2f}, "
        f"{post_high:.2f}] after post-norm (expected 0: it does {'not fall' if post > -0.1 else 'fall'}) and {pre:.2f} "
        f"[{pre_low:.2f}, {pre_high:.2f}] after pre-norm "
        "(expected -0.5), both to 0.1",
        {
            "post_norm_slope": post, "post_norm_low": post_low, "post_norm_high": post_high,
            "pre_norm_slope": pre, "pre_norm_low": pre_low, "pre_norm_high": pre_high, "without_final_norm": bare,
        },
        (Control("pre-norm without its final norm, whose slope is not -0.5", abs(bare + 0.5), 0.1),),
        tuple(curves),
    )  # fmt: skip


@check("norm.rms_equals_layer", claim=4, part="a")
def rms_equals_layer(quick: bool) -> Outcome:
    """RMSNorm equals LayerNorm without bias on centred vectors, and in a model that writes nothing else."""
    errors = {}
    for dtype in EXACT:
        layer, rms = pair_of_norms(128, dtype)
        x = normal(64, 128, dtype=dtype, seed=1)
        errors[dtype] = relative_error(rms(x - x.mean(-1, keepdim=True)), layer(x - x.mean(-1, keepdim=True)))
    layer, rms = pair_of_norms(128, torch.float64)
    shifted = normal(64, 128, seed=1) + 0.5
    models: list[Any] = [centred_model(norm) for norm in (LayerNorm(bias=False), RMSNorm())]
    tokens = random_tokens(models[0].spec, 2, LENGTH)
    whole = relative_error(models[1](tokens).logits, models[0](tokens).logits)
    plain = [random_model(normed(norm))(tokens).logits for norm in (LayerNorm(bias=False), RMSNorm())]
    return Outcome(
        all(error <= EXACT[dtype] for dtype, error in errors.items()) and whole <= EXACT[torch.float64],
        f"on centred vectors they differ by {errors[torch.float64]:.1e} in float64 and {errors[torch.float32]:.1e} in "
        f"float32; logits of a pre-norm model whose parts write centred vectors only, by {whole:.1e}; LayerNorm with "
        "its bias has d_model more parameters a norm",
        {"float64": errors[torch.float64], "float32": errors[torch.float32], "model_float64": whole},
        (
            Control("vectors with a mean", relative_error(rms(shifted), layer(shifted)), WRONG),
            Control("a model that writes a mean", relative_error(plain[1], plain[0]), WRONG),
        ),
    )  # fmt: skip


def pair_of_norms(features: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    layer, rms = (build_norm(norm, features).to(dtype) for norm in (LayerNorm(bias=False), RMSNorm()))
    randomize(layer)  # both norms get the same random weight
    rms.load_state_dict(layer.state_dict())
    return layer, rms.eval()


def normed(norm: Norm) -> Decoder:
    layer = block(wiring=PreNorm(norm=norm))
    return decoder(layer, layer, final_norm=norm)


@torch.no_grad()
def centred_model(norm: Norm) -> Any:
    """Return a model whose embedding and contributions to the residual stream have zero mean over the features."""
    model = random_model(normed(norm))
    table: Tensor = model.embedding.token.weight
    table -= table.mean(1, keepdim=True)
    for layer in model.blocks:
        for projection in (layer.mixer.o.weight, layer.feedforward.down.weight):
            projection -= projection.mean(0, keepdim=True)
    return model


@check("norm.time", claim=4, part="c", kind="timing")
def time(quick: bool) -> Outcome:
    """RMSNorm takes less time than LayerNorm, each as torch's operation for this processor."""
    widths, rounds, vectors = ((16, 32), 2, 64) if quick else ((96, 256, 1024, 4096), 15, 2**21)
    if not quick:
        refuse_if_busy()
    ratios = []
    for width in widths:
        layer, rms = (norm.requires_grad_(False) for norm in pair_of_norms(width, torch.float32))
        x = normal(max(1, vectors // width), width, dtype=torch.float32)
        ratios.append(compare(partial(rms, x), partial(layer, x), rounds))
    text = ", ".join(f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" for ratio in ratios)
    return Outcome(
        all(ratio.high < 1 for ratio in ratios),
        f"RMSNorm over LayerNorm, eager float32, forward: {text} times at widths {', '.join(map(str, widths))}",
        {f"ratio_{width}": ratio.median for width, ratio in zip(widths, ratios, strict=True)},
        (),
        (
            Curve(
                "RMSNorm over LayerNorm", tuple(map(float, widths)), tuple(ratio.median for ratio in ratios), "width",
                "ratio of times", log_x=True,
            ),
        ),
    )  # fmt: skip
