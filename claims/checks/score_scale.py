"""Scores without 1 / sqrt(d_k): saturation of the softmax, and the gradient of a query."""

from typing import NamedTuple

import torch

from archetype.parts.pattern.scores import ScoreFunction
from archetype.studies.outcome import Control, Curve, Outcome
from archetype.studies.registry import check
from claims.small_models import normal

KEYS = 128
WIDTHS = (16, 64, 256, 512, 1024)
# predicted for 128 keys and unit-variance queries and keys
SATURATED = {16: 0.02, 64: 0.15, 256: 0.41, 1024: 0.68}
JACOBIAN = {16: 0.61, 64: 0.33, 256: 0.16, 1024: 0.075}
CLOSE = 0.03


class Scores(NamedTuple):
    """Measures of a softmax over scores of unit-variance queries and keys.

    Args:
        deviation: standard deviation of the scores.
        saturated: share of queries with a weight above 0.99.
        jacobian: mean trace of softmax's Jacobian, 1 - sum p^2.
        gradient: median norm of the gradient by a query.
        entropy: mean entropy of the weights, in nats.
    """

    deviation: float
    saturated: float
    jacobian: float
    gradient: float
    entropy: float


def simulate(width: int, scale: float, batches: int, seed: int = 0) -> Scores:
    """Measure scores of 128 queries and 128 keys of `width` features, and the gradient through random values."""
    shape = (batches, 1, KEYS, width)
    q, k, v, dy = (normal(*shape, dtype=torch.float32, seed=4 * seed + part) for part in range(4))
    q.requires_grad_()
    function = ScoreFunction(scale)
    scores = function.scores(q, k)
    weights = function.softmax(scores)
    (gradient,) = torch.autograd.grad(weights @ v, q, dy)
    weights = weights.detach()
    return Scores(
        scores.std().item(),
        (weights.amax(-1) > 0.99).double().mean().item(),
        (1 - weights.square().sum(-1)).mean().item(),
        gradient.norm(dim=-1).median().item(),
        -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean().item(),
    )


def both(quick: bool, widths: tuple[int, ...]) -> dict[int, tuple[Scores, Scores]]:
    """Return the measures without and with the scale, by width."""
    batches = 8 if quick else 64
    return {d: (simulate(d, 1.0, batches), simulate(d, d**-0.5, batches)) for d in widths}


@check("score_scale.saturation", claim=23, part="a", kind="simulation")
def saturation(quick: bool) -> Outcome:
    """Without the scale, scores deviate by the root of d_k, and a growing share of queries attends to a single key."""
    measured = both(quick, (16, 64, 256, 1024))
    shares = {d: plain.saturated for d, (plain, _) in measured.items()}
    deviates = max(abs(plain.deviation / d**0.5 - 1) for d, (plain, _) in measured.items())
    agree = all(abs(shares[d] - share) <= CLOSE for d, share in SATURATED.items())
    scaled = max(with_scale.saturated for _, with_scale in measured.values())
    x = tuple(map(float, measured))
    curves = tuple(
        Curve(label, x, tuple(pair[index].entropy for pair in measured.values()), "d_k", "entropy (nats)", log_x=True)
        for index, label in enumerate(("without the scale", "with it"))
    )
    text = ", ".join(f"{share:.2f} at {d}" for d, share in shares.items())
    return Outcome(
        agree and deviates <= 0.05 and scaled == 0,
        f"the deviation of scores is the root of d_k within {deviates:.1%}; the share of queries with a weight above "
        f"0.99 among {KEYS} keys is {text} without the scale, and {scaled:.0f} with it",
        {f"saturated_{d}": share for d, share in shares.items()} | {"deviation_error": deviates, "scaled": scaled},
        (Control("a scale of 1 where d_k is 64 (deviation, less 1)", measured[64][0].deviation - 1, 1.0),),
        curves,
    )


@check("score_scale.jacobian", claim=23, part="b", kind="simulation")
def jacobian(quick: bool) -> Outcome:
    """Without the scale the trace of softmax's Jacobian goes towards 0 as d_k grows."""
    measured = both(quick, (16, 64, 256, 1024))
    traces = {d: plain.jacobian for d, (plain, _) in measured.items()}
    scaled = {d: with_scale.jacobian for d, (_, with_scale) in measured.items()}
    agree = all(abs(traces[d] - trace) <= CLOSE for d, trace in JACOBIAN.items())
    text = ", ".join(f"{trace:.3f} at {d}" for d, trace in traces.items())
    x = tuple(map(float, measured))
    curves = tuple(
        Curve(label, x, tuple(values.values()), "d_k", "trace of the Jacobian", log_x=True)
        for label, values in (("without the scale", traces), ("with it", scaled))
    )
    return Outcome(
        agree and all(abs(trace - 0.98) <= 0.01 for trace in scaled.values()),
        f"the mean trace of softmax's Jacobian is {text} without the scale, and {min(scaled.values()):.2f} or more "
        "with it",
        {f"trace_{d}": trace for d, trace in traces.items()} | {f"scaled_{d}": trace for d, trace in scaled.items()},
        (Control("a scale of 1/8 where d_k is 1024 (trace lost)", 0.98 - simulate(1024, 0.125, 4).jacobian, 0.1),),
        curves,
    )


@check("score_scale.gradient", claim=23, part="c", kind="simulation")
def gradient(quick: bool) -> Outcome:
    """The gradient of a query is larger without the scale for usual d_k, and smaller for very large ones only."""
    measured = both(quick, WIDTHS)
    ratios = {d: plain.gradient / with_scale.gradient for d, (plain, with_scale) in measured.items()}
    text = ", ".join(f"{ratio:.2f} at {d}" for d, ratio in ratios.items())
    larger = max((d for d, ratio in ratios.items() if ratio > 1), default=0)
    x = tuple(map(float, measured))
    return Outcome(
        all(ratio > 1 for d, ratio in ratios.items() if d <= 512) and ratios[1024] < 1,
        f"the median gradient of a query without the scale is {text} times that with it: larger up to {larger}, for "
        "the missing factor also multiplies the gradient, and it vanishes only for wider heads than are usual",
        {f"ratio_{d}": ratio for d, ratio in ratios.items()},
        (),
        tuple(
            Curve(
                label, x, tuple(pair[index].gradient for pair in measured.values()), "d_k",
                "median gradient of a query", log_x=True, log_y=True,
            )
            for index, label in enumerate(("without the scale", "with it"))
        ),
    )  # fmt: skip
