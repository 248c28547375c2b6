"""Windows: the reach of a stack of them, and a state that is as long as one window."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from archetype import families
from archetype.estimate.report import cost_report
from archetype.models.decoder.spec import Decoder
from archetype.nn.context import ForwardContext
from archetype.parts.attention.spec import Attention
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.roles.pattern import Pattern
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.fit import bootstrap, power_law
from claims.small_models import EXACT, WRONG, attending, normal, random_model, random_tokens, relative_error
from claims.timing import refuse_if_busy, times_in_turn


def influence(model: Decoder, length: int) -> Tensor:
    """Return |d output_i / d input_j| of one random direction for every (i, j), in float64: (T, T)."""
    built = random_model(model)
    x = normal(1, length, model.d_model, seed=1).requires_grad_()
    y = built.final_norm(built.run(x, ForwardContext.of(x)))[0]
    direction = normal(model.d_model, seed=2)
    rows = [torch.autograd.grad(y[i] @ direction, x, retain_graph=True)[0][0].norm(dim=-1) for i in range(length)]
    return torch.stack(rows)


def misplaced(gradients: Tensor, reach: int) -> int:
    """Return how many pairs contradict the rule that j reaches i exactly if 0 <= i - j <= reach."""
    places = torch.arange(len(gradients))
    distance = places[:, None] - places
    return int(((gradients != 0) != ((distance >= 0) & (distance <= reach))).sum())


@check("window.reach", claim=7, part="a")
def reach(quick: bool) -> Outcome:
    """With windows of W keys, including the query's position, L layers reach exactly the L (W - 1) tokens before."""
    sizes = ((2, 4), (3, 3)) if quick else ((1, 8), (2, 4), (3, 3), (4, 16), (6, 5), (8, 8))
    wrong, controls, half = 0, [], 0
    for layers, window in sizes:
        model = attending(layers, pattern=Window(size=window), position=Rotary())
        gradients = influence(model, layers * (window - 1) + 6)
        wrong += misplaced(gradients, layers * (window - 1))
        controls.append(misplaced(gradients, layers * window))
        half = half_distance(gradients[-1])
    mistral = families.preset("mistral-7b")
    assert isinstance(mistral, Decoder)
    windows = [block.mixer.pattern for block in mistral.layers if isinstance(block.mixer, Attention)]
    published = sum(pattern.size - 1 for pattern in windows if isinstance(pattern, Window))
    share = gradients[-1].flip(0)
    return Outcome(
        wrong == 0 and published == 131_040,
        f"a token's gradient is not zero for exactly the tokens up to L (W - 1) before it, in {len(sizes)} stacks; "
        f"Mistral 7B's windows reach {published:,} tokens back, not {32 * 4096:,}; half of the influence comes from "
        f"within {half} tokens in the last of these stacks, which reaches {layers * (window - 1)}, before training",
        {"contradicting_pairs": wrong, "mistral_7b": published, "half_of_influence_within": half},
        (Control("a reach of L W", float(min(controls)), 0.0),),
        (
            Curve(
                f"{layers} layers of {window}", tuple(map(float, range(layers * (window - 1) + 1))),
                tuple((share / share.max())[: layers * (window - 1) + 1].tolist()), "distance (tokens)",
                "gradient, of the largest", log_y=True,
            ),
        ),
    )  # fmt: skip


def half_distance(gradients: Tensor) -> int:
    """Return the distance within which half of the last token's gradient lies."""
    by_distance = gradients.flip(0).cumsum(0)
    return int((by_distance < by_distance[-1] / 2).sum())


@check("window.state", claim=7, part="state")
def state(quick: bool) -> Outcome:
    """A state of the newest W positions gives the whole text's logits; a window of its length is full attention."""
    window, length = 5, 24 if quick else 60
    errors = {}
    for dtype in EXACT:
        model = random_model(attending(pattern=Window(size=window), position=Rotary()), dtype)
        tokens = random_tokens(model.spec, 2, length)
        whole = model(tokens).logits
        errors[dtype] = max(relative_error(decoded(model, tokens, step), whole) for step in (1, 7))
        narrower = random_model(attending(pattern=Window(size=window - 1), position=Rotary()), dtype)
        shorter = relative_error(decoded(narrower, tokens, 1), whole)
    full, wide = (
        random_model(attending(pattern=pattern, position=Rotary()))(tokens).logits
        for pattern in (Full(), Window(size=length))
    )
    equal = relative_error(wide, full)
    sizes = [
        cost_report(model.spec, length=size, dtype="float32").state["bytes"] for size in (window, 2 * window, length)
    ]
    allocated = model.new_state(1, length, torch.float32).nbytes
    return Outcome(
        all(error <= EXACT[dtype] for dtype, error in errors.items())
        and equal <= EXACT[torch.float64] and len({*sizes, allocated}) == 1,
        f"decoding with {window} places gives the whole text's logits to {errors[torch.float64]:.1e} in float64 and "
        f"{errors[torch.float32]:.1e} in float32 over {length} tokens; its {allocated:,} bytes do not grow past the "
        f"window; a window of {length} equals full attention to {equal:.1e}",
        {
            "float64": errors[torch.float64], "float32": errors[torch.float32], "window_as_long": equal,
            "state_bytes": float(allocated),
        },
        (Control("a state of one place less", shorter, WRONG),),
    )  # fmt: skip


def decoded(model: Any, tokens: Tensor, step: int) -> Tensor:
    # logits of a text that is read `step` tokens at a time, with a state
    return torch.cat(list(_chunks(model, tokens, step)), dim=1)


def _chunks(model: Any, tokens: Tensor, step: int) -> Iterator[Tensor]:
    state = model.new_state(tokens.shape[0], tokens.shape[1])
    for chunk in tokens.split(step, dim=1):
        output = model(chunk, state)
        state = output.state
        yield output.logits


@check("window.prefill", claim=7, part="b", kind="timing")
def prefill(quick: bool) -> Outcome:
    """The time to read a prompt grows linearly with a window, and towards the square without one."""
    window, lengths, rounds = (16, (32, 64, 128), 2) if quick else (256, (1024, 2048, 4096, 8192, 16384), 15)
    if not quick:
        refuse_if_busy()
    slopes, curves = {}, []
    for name, pattern in (("window", Window(size=window)), ("full", Full())):
        model = long_model(pattern, lengths[-1])
        texts = [random_tokens(model.spec, 1, length) for length in lengths]
        with torch.inference_mode():
            times = times_in_turn([partial(model, text, last_only=True) for text in texts], rounds)
        slopes[name] = [power_law(lengths, [one[number] for one in times]).slope for number in range(rounds)]
        middle = tuple(sorted(one)[len(one) // 2] for one in times)
        axes: Axes = {"x_name": "tokens", "y_name": "seconds", "log_x": True, "log_y": True}
        curves.append(Curve(name, tuple(map(float, lengths)), middle, **axes))
    (low, high), (full_low, full_high) = (bootstrap(values) for values in slopes.values())
    return Outcome(
        high <= 1.1,
        f"prefill time grows as length to the power [{low:.2f}, {high:.2f}] with a window of {window} in tiles, and "
        f"[{full_low:.2f}, {full_high:.2f}] with full attention, over {lengths[0]:,} to {lengths[-1]:,} tokens",
        {"window_low": low, "window_high": high, "full_low": full_low, "full_high": full_high},
        (),
        tuple(curves),
    )


def long_model(pattern: Pattern, length: int) -> Any:
    """Return a narrow decoder for long texts."""
    model = attending(2, pattern=pattern, position=Rotary()).replace(context_length=length)
    return random_model(model, torch.float32)
