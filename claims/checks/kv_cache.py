"""KV cache: the same logits, the work that it saves, and the memory that fewer key heads save."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from archetype.estimate.report import cost_report
from archetype.models.block.spec import Block, PreNorm
from archetype.models.build import build_on_meta
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Rotary
from archetype.spec.repeats import repeat
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.checks.window import decoded
from claims.counted import counted_flops
from claims.fit import bootstrap, line, median
from claims.small_models import EXACT, WRONG, attending, random_model, random_tokens, relative_error
from claims.timing import compare, refuse_if_busy, times_in_turn

HEADS, LENGTH = 8, 20
KEYS = ("mixer.k.weight", "mixer.v.weight")


def standard(d_model: int, layers: int, context_length: int, **attention: Any) -> Decoder:
    """Return the standard block of Vaswani 2017 without biases, pre-norm."""
    norm = LayerNorm()
    layer = Block(
        wiring=PreNorm(norm=norm),
        mixer=Attention(**{"num_heads": d_model // 64 or 1} | attention),
        feedforward=MLP(d_ff=4 * d_model, activation="relu"),
    )
    return Decoder(
        vocab_size=256, context_length=context_length, d_model=d_model, layers=repeat(layers, layer),
        final_norm=norm,
    )  # fmt: skip


@check("kv_cache.heads", claim=6, part="a")
def heads(quick: bool) -> Outcome:
    """The state shrinks by exactly K / H; grouped heads are whole ones with repeated keys, and K = H is multi-head."""
    whole = random_model(attending(num_heads=HEADS, num_kv_heads=HEADS, head_dim=4))
    tokens = random_tokens(whole.spec, 2, LENGTH)
    errors: list[float] = []
    controls: list[float] = []
    ratios = []
    for shared in (1, 2, 4, 8):
        grouped = random_model(attending(num_heads=HEADS, num_kv_heads=shared, head_dim=4))
        logits = grouped(tokens).logits
        for interleaved, differences in ((False, errors), (True, controls)):
            whole.load_state_dict(with_repeated_heads(grouped.state_dict(), shared, interleaved))
            differences.append(relative_error(whole(tokens).logits, logits))
        bytes_of = [model.new_state(3, LENGTH).nbytes for model in (grouped, whole)]
        counted = [cost_report(model.spec, 3, LENGTH, "float64").state["bytes"] for model in (grouped, whole)]
        ratios.append(bytes_of == counted and bytes_of[0] * HEADS == bytes_of[1] * shared)
    default = random_model(attending(num_heads=HEADS, num_kv_heads=None, head_dim=4))
    default.load_state_dict(whole.state_dict())
    errors.append(relative_error(default(tokens).logits, whole(tokens).logits))
    return Outcome(
        max(errors) <= EXACT[torch.float64] and all(ratios),
        f"with K of {HEADS} heads the state has exactly K / {HEADS} of the bytes, allocated as computed, for K = 1, 2, "
        f"4, 8; logits equal those of {HEADS} heads with repeated keys and values to {max(errors):.1e}",
        {"error": max(errors), "ratios_exact": float(all(ratios))},
        (Control("heads that read key head h mod K", min(controls[1:3]), WRONG),),
    )


def with_repeated_heads(tensors: dict[str, Tensor], shared: int, interleaved: bool) -> dict[str, Tensor]:
    """Return tensors in which each key head is repeated for its query heads; interleaved, for the wrong ones."""
    repeated = {}
    for name, tensor in tensors.items():
        if name.endswith(KEYS):
            # (K, P, D)
            split, times = tensor.unflatten(0, (shared, -1)), HEADS // shared
            wide = split.repeat(times, 1, 1) if interleaved else split.repeat_interleave(times, 0)
            repeated[name] = wide.flatten(0, 1)
        else:
            repeated[name] = tensor
    return repeated


@check("kv_cache.logits", claim=11, part="a")
def logits(quick: bool) -> Outcome:
    """Decoding with a cache gives the same logits as reading the whole text again."""
    length, errors = LENGTH if quick else 60, {}
    for dtype in EXACT:
        model = random_model(attending(position=Rotary()), dtype)
        tokens = random_tokens(model.spec, 2, length)
        whole = model(tokens).logits
        errors[dtype] = max(relative_error(decoded(model, tokens, step), whole) for step in (1, 6))
    state = model.new_state(2, length)
    state = model(tokens[:, :5], state).state
    # a planted mistake: one cached key is overwritten by its neighbor's
    state.layers[0].keys[:, :, 4] = state.layers[0].keys[:, :, 3]
    stale = relative_error(model(tokens[:, 5:], state).logits, whole[:, 5:])
    return Outcome(
        all(error <= EXACT[dtype] for dtype, error in errors.items()),
        f"logits of {length} tokens one by one, and six by six, differ from those of the whole text by "
        f"{errors[torch.float64]:.1e} in float64 and {errors[torch.float32]:.1e} in float32",
        {"float64": errors[torch.float64], "float32": errors[torch.float32]},
        (Control("one key of one layer that is another position's", stale, WRONG),),
    )


@check("kv_cache.flops", claim=11, part="b", kind="analytic")
def flops(quick: bool) -> Outcome:
    """A next token takes a t + b t^2 FLOPs without a cache and c + e t with one, to the integer."""
    d, layers, lengths = (64, 2, (8, 16, 40)) if quick else (256, 4, (64, 512, 1536, 1537, 4096))
    model = standard(d, layers, lengths[-1])
    built: Any = build_on_meta(model)
    head = 2 * d * model.vocab_size
    a, b, c, e = 24 * d * d * layers, 4 * d * layers, 24 * d * d * layers + head, 4 * d * layers
    wrong, counted = 0, {}
    for t in lengths:
        tokens = torch.zeros(1, t, dtype=torch.long, device="meta")
        report = cost_report(model, length=t).flops
        state = built.new_state(1, t)
        counted[t] = (
            counted_flops(partial(built, tokens, last_only=True)),
            counted_flops(partial(built, tokens[:, :1], state)),
        )
        wrong += counted[t] != (report["prefill"], report["decode"])
        wrong += counted[t] != (a * t + b * t * t + head, c + e * t)
    half = counted[lengths[0]][0] - (a * lengths[0] + b * lengths[0] ** 2 // 2 + head)
    crossover = (a + b - 1) // b
    axes: Axes = {"x_name": "tokens", "y_name": "FLOPs of the next token", "log_x": True, "log_y": True}
    x = tuple(map(float, lengths))
    return Outcome(
        wrong == 0 and crossover == 6 * d,
        f"at width {d} and {layers} layers: {a:,} t + {b:,} t^2 + {head:,} without and {c:,} + {e:,} t with a cache, "
        "as counted by the dispatcher and by cost; only the attention's term goes from quadratic to linear, the dense "
        f"one from linear to constant, and it is the larger one below t = 6 d = {crossover:,}",
        {"linear": a, "quadratic": b, "constant_cached": c, "linear_cached": e, "crossover": crossover},
        (Control("half of the pairs counted, as causal attention could have it (FLOPs)", abs(half), 0.0),),
        (
            Curve("without a cache", x, tuple(float(one) for one, _ in counted.values()), **axes),
            Curve("with a cache", x, tuple(float(one) for _, one in counted.values()), **axes),
        ),
    )


@check("kv_cache.time", claim=11, part="c", kind="timing")
def time(quick: bool) -> Outcome:
    """The time of the next token grows quadratically with its position without a cache, and linearly with one."""
    d, layers, rounds = (64, 1, 2) if quick else (256, 4, 15)
    lengths = (8, 16, 32, 64) if quick else (256, 512, 1024, 1536, 2048, 3072, 4096)
    if not quick:
        refuse_if_busy()
    model = random_model(standard(d, layers, lengths[-1] + 1), torch.float32)
    texts = [random_tokens(model.spec, 1, length) for length in lengths]
    states = [model(text[:, :-1], model.new_state(1, text.shape[1])).state for text in texts]
    with torch.inference_mode():
        without = times_in_turn([partial(model, text, last_only=True) for text in texts], rounds)
        newest = [text[:, -1:] for text in texts]
        cached = times_in_turn([partial(model, *one) for one in zip(newest, states, strict=True)], rounds)
    curvature = [quadratic(lengths, [one[number] for one in without]) for number in range(rounds)]
    low, high = bootstrap(curvature)
    middle = [[median(torch.tensor(one)).item() for one in times] for times in (without, cached)]
    linear = line(lengths, middle[1])
    axes: Axes = {"x_name": "tokens", "y_name": "seconds of the next token", "log_x": True, "log_y": True}
    x = tuple(map(float, lengths))
    return Outcome(
        low > 0 and linear.r_squared > 0.98,
        f"without a cache the quadratic term is [{low:.2e}, {high:.2e}] s a token squared; with one the time is a line "
        f"with R^2 {linear.r_squared:.3f}, {linear.intercept:.2e} s and {linear.slope:.2e} s a token",
        {"quadratic_low": low, "quadratic_high": high, "cached_slope": linear.slope, "cached_r2": linear.r_squared},
        (),
        tuple(
            Curve(name, x, tuple(times), **axes)
            for name, times in zip(("without a cache", "with a cache"), middle, strict=True)
        ),
    )


def quadratic(x: tuple[int, ...], y: list[float]) -> float:
    """Return the coefficient of x^2 of the least-squares parabola."""
    columns = torch.tensor([[1.0, value, value * value] for value in x], dtype=torch.float64)
    coefficients = torch.linalg.lstsq(columns, torch.tensor(y, dtype=torch.float64)[:, None]).solution
    return float(coefficients[2])


@check("kv_cache.decode_time", claim=6, part="b", kind="timing")
def decode_time(quick: bool) -> Outcome:
    """If most bytes read are state, grouped heads decode nearly as fast as one head, and twice as fast as all heads."""
    rows, length, rounds, d, kv_heads = (2, 32, 2, 64, (4, 1, 1)) if quick else (32, 4096, 15, 256, (16, 2, 1))
    if not quick:
        refuse_if_busy()
    steps = []
    for shared in kv_heads:
        model = random_model(standard(d, 4, length, num_heads=kv_heads[0], num_kv_heads=shared), torch.float32)
        state, newest = model.new_state(rows, length), random_tokens(model.spec, rows, 1)
        # the contents of the cache do not matter for the time
        state.lengths += length - 1
        steps.append(partial(model, newest, state))
    with torch.inference_mode():
        grouped, whole = compare(steps[1], steps[2], rounds), compare(steps[0], steps[1], rounds)
    return Outcome(
        grouped.high <= 1.3 and whole.low >= 2,
        f"at {rows} rows of {length:,} tokens a step with {kv_heads[1]} key heads takes {grouped.median:.2f} "
        f"[{grouped.low:.2f}, {grouped.high:.2f}] times one with 1, and with {kv_heads[0]} {whole.median:.2f} "
        f"[{whole.low:.2f}, {whole.high:.2f}] times one with {kv_heads[1]}",
        {"grouped_over_one": grouped.median, "all_over_grouped": whole.median},
    )
