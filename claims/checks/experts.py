"""Mixtures of experts: parameters grow with the number of experts, FLOPs hardly; one expert is its dense block."""

from functools import partial
from typing import Any

import torch

from archetype.estimate.report import cost_report
from archetype.models.build import build_on_meta
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.router.spec import SigmoidRouter
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.counted import counted_flops
from claims.small_models import EXACT, GATED, WRONG, block, decoder, random_model, random_tokens, relative_error
from claims.timing import Ratio, compare, refuse_if_busy

D, D_FF, CHOSEN = 64, 96, 2


def mixture(num_experts: int, d: int = D, d_ff: int = D_FF, chosen: int = CHOSEN) -> Decoder:
    """Return a decoder of one layer with experts of gated parts."""
    expert = GatedMLP(d_ff=d_ff, activation="silu")
    part = MixtureOfExperts(num_experts=num_experts, experts_per_token=chosen, expert=expert)
    return decoder(block(feedforward=part), d_model=d)


@check("experts.counts", claim=10, part="a", kind="analytic")
def counts(quick: bool) -> Outcome:
    """Parameters grow by one expert each; FLOPs per token are always those of k experts and a router of 2 d E."""
    numbers, length, wrong = (2, 8) if quick else (2, 4, 8, 16, 32, 64), 16, 0
    one = 3 * D * D_FF
    parameters, flops = {}, {}
    for number in numbers:
        model = mixture(number)
        built: Any = build_on_meta(model)
        part = [row for row in cost_report(model, length=length).rows if ".feedforward." in row.module]
        parameters[number], flops[number] = sum(row.parameters for row in part), sum(row.forward for row in part)
        actual = random_model(model, torch.float32)
        tokens = random_tokens(model, 1, length)
        wrong += sum(p.numel() for p in built.blocks[0].feedforward.parameters()) != parameters[number]
        # E experts of 3 d d_ff, and a router of E d
        wrong += parameters[number] != number * one + number * D
        wrong += flops[number] != length * (CHOSEN * 2 * one + 2 * D * number)
        wrong += counted_flops(partial(actual, tokens)) != cost_report(model, length=length).flops["forward"]
    first, last = numbers[0], numbers[-1]
    errors = {dtype: single_expert_error(dtype) for dtype in EXACT}
    all_computed = length * last * 2 * one - flops[last]
    x = tuple(map(float, numbers))
    axes: Axes = {"x_name": "experts", "y_name": "of the smallest", "log_x": True, "log_y": True}
    return Outcome(
        wrong == 0 and all(error <= EXACT[dtype] for dtype, error in errors.items()),
        f"from {first} to {last} experts with {CHOSEN} a token, parameters grow "
        f"{parameters[last] / parameters[first]:.1f} times and FLOPs {flops[last] / flops[first]:.3f} times, as "
        "formula, "
        "cost, built model and dispatcher say; a single expert equals its dense block to "
        f"{errors[torch.float64]:.1e} in float64: this is of FLOPs, not of time",
        {
            "parameters_ratio": parameters[last] / parameters[first], "flops_ratio": flops[last] / flops[first],
            "single_float64": errors[torch.float64], "single_float32": errors[torch.float32], "mismatches": wrong,
        },
        (
            Control("all experts computed (FLOPs more)", float(all_computed), 0.0),
            Control("a single expert weighed by its sigmoid", single_expert_error(torch.float64, False), WRONG),
        ),
        (
            Curve("parameters", x, tuple(parameters[n] / parameters[first] for n in numbers), **axes),
            Curve("FLOPs a token", x, tuple(flops[n] / flops[first] for n in numbers), **axes),
        ),
    )  # fmt: skip


def single_expert_error(dtype: torch.dtype, renormalize: bool = True) -> float:
    """Return the relative error between a mixture of one expert and its dense block with the same weights."""
    router = SigmoidRouter(renormalize=renormalize)
    part = MixtureOfExperts(num_experts=1, experts_per_token=1, expert=GATED, router=router)
    many, dense = random_model(decoder(block(feedforward=part)), dtype), random_model(decoder(block()), dtype)
    tensors = {name: tensor for name, tensor in many.state_dict().items() if "feedforward." not in name}
    for name in ("gate", "up", "down"):
        tensors[f"blocks.0.feedforward.{name}.weight"] = getattr(many.blocks[0].feedforward.experts, name)[0]
    dense.load_state_dict(tensors)
    tokens = random_tokens(dense.spec, 2, 16)
    return relative_error(many(tokens).logits, dense(tokens).logits)


@check("experts.time", claim=10, part="b", kind="timing")
def time(quick: bool) -> Outcome:
    """Sixteen experts take hardly longer than two for one row and for long prompts, and longer for several rows."""
    d, d_ff, few, many, rounds = (32, 64, 2, 4, 2) if quick else (1024, 2048, 2, 16, 15)  # 400 MB of experts
    if not quick:
        refuse_if_busy()
    models = [random_model(mixture(number, d, d_ff), torch.float32) for number in (many, few)]
    batches = (1, 4, 8, 32)
    ratios: dict[int, Ratio] = {}
    with torch.inference_mode():
        for rows in batches:
            tokens = random_tokens(models[0].spec, rows, 1)
            ratios[rows] = compare(partial(models[0], tokens), partial(models[1], tokens), rounds)
        prompt = random_tokens(models[0].spec, 64, 64)
        read = [partial(model, prompt, last_only=True) for model in models]
        prefill = compare(read[0], read[1], rounds)
    expected = {rows: distinct(many, rows) / distinct(few, rows) for rows in batches}
    x = tuple(map(float, batches))
    axes: Axes = {"x_name": "rows", "y_name": "ratio of times", "log_x": True}
    text = ", ".join(
        f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] at {rows} rows ({expected[rows]:.1f} times the "
        "experts)"
        for rows, ratio in ratios.items()
    )
    return Outcome(
        ratios[1].high <= 1.3 and prefill.high <= 1.3 and min(ratios[8].low, ratios[32].low) > 1.3,
        f"{many} experts over {few}, {CHOSEN} a token: decoding takes {text} as long, a prompt of 4,096 tokens "
        f"{prefill.median:.2f} [{prefill.low:.2f}, {prefill.high:.2f}]",
        {f"rows_{rows}": ratio.median for rows, ratio in ratios.items()} | {"prefill": prefill.median},
        (),
        (
            Curve("measured", x, tuple(ratio.median for ratio in ratios.values()), **axes),
            Curve("experts read", x, tuple(expected.values()), **axes),
        ),
    )


def distinct(experts: int, rows: int) -> float:
    """Return the mean number of experts that some rows read, each choosing k at random: E (1 - (1 - k / E)^B)."""
    return experts * (1 - (1 - CHOSEN / experts) ** rows)
