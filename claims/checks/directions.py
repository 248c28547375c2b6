"""Nearly orthogonal directions: many for a fixed cosine, few for a cosine that shrinks with the root of the width."""

import math

import torch
from torch import Tensor

from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.fit import line

COSINES = (0.2, 0.3, 0.4, 0.5)
MANY = 50_000
MAXIMA = {64: 0.768, 256: 0.384, 768: 0.222, 1024: 0.192}  # of 50,000 vectors, as predicted
STEPS = 20_001
EULER = 0.5772156649
DEVIATION_LOG = 0.5 * math.pi / math.sqrt(6)  # standard deviation of ln N; N vectors are drawn until a near pair


def log_pair_probability(cosine: float, d: int) -> float:
    """Return ln P(|cos| > c) of two random unit vectors in d dimensions; cos^2 is Beta(1/2, (d - 1)/2)."""
    # integration points are dense near the cosine, where the density is largest
    t = cosine + (1 - cosine) * torch.linspace(0, 1, STEPS, dtype=torch.float64) ** 2
    log_density = (d - 3) / 2 * torch.log1p(-(t[:-1] ** 2))
    peak = log_density.max()
    area = torch.trapezoid((log_density - peak).exp(), t[:-1])
    log_beta = math.lgamma(0.5) + math.lgamma((d - 1) / 2) - math.lgamma(d / 2)
    return (peak + area.log()).item() + math.log(2) - log_beta


def expected_log_number(cosine: float, d: int) -> float:
    """Return the mean of ln N; N vectors are drawn until two are nearer than `cosine`, and pairs are independent."""
    log_p = log_pair_probability(cosine, d)
    continuous = 0.5 * (math.log(2) - log_p - EULER)  # N^2 = 2 E / p, E exponential
    # a small N is a sum over integers, since the continuous approximation is too rough
    if continuous > 7:
        return continuous
    n = torch.arange(1, 10 + int(8 * math.exp(continuous)), dtype=torch.float64)
    beyond = torch.exp(n * (n - 1) / 2 * math.log1p(-math.exp(log_p)))  # P(N > n)
    return ((beyond[:-1] - beyond[1:]) * n[1:].log()).sum().item()


def unit_vectors(number: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(number, d, generator=generator), dim=-1)  # (N, d)


def number_until_a_pair(cosine: float, d: int, generator: torch.Generator, block: int = 128) -> int:
    """Draw random directions until two have |cos| above the bound, and return their number."""
    drawn = torch.empty(0, d)
    while True:
        new = unit_vectors(block, d, generator)
        earlier = ((new @ drawn.T).abs() > cosine).any(1)
        # pairs within the block, each counted at its later vector
        within = ((new @ new.T).abs() > cosine).tril(-1).any(1)
        if (collides := earlier | within).any():
            return len(drawn) + int(collides.nonzero()[0]) + 1
        drawn = torch.cat((drawn, new))


def width_of(number: float, cosine: float) -> int:
    """Return the smallest width in which `number` directions are expected before the first near pair."""
    low, high = 16, 2**15
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if expected_log_number(cosine, middle) < math.log(number) else (low, middle)
    return low


@check("directions.growth", claim=21, part="a", kind="simulation")
def growth(quick: bool) -> Outcome:
    """The number of random directions without a near pair grows exponentially with the width, for a fixed cosine."""
    draws, most, points = (4, 300, 4) if quick else (20, 5000, 8)
    generator = torch.Generator().manual_seed(0)
    values: dict[str, float] = {}
    curves, deviations, bounded = [], [], True
    for cosine in COSINES:
        last = width_of(MANY, cosine)
        widths = torch.linspace(16, last, 24).round().int().unique().tolist()
        expected = [expected_log_number(cosine, d) for d in widths]
        slope, rate = line(widths, expected).slope, -math.log1p(-(cosine**2)) / 4
        values |= {f"slope_{cosine}": slope, f"rate_{cosine}": rate, f"width_of_50k_{cosine}": last}
        bounded &= all(log_pair_probability(cosine, d) <= math.log(2) - cosine**2 * d / 2 for d in widths)
        tried = torch.linspace(16, width_of(most, cosine), points).round().int().unique().tolist()
        logs = [[math.log(number_until_a_pair(cosine, d, generator)) for _ in range(draws)] for d in tried]
        deviations += [log - expected_log_number(cosine, d) for d, one in zip(tried, logs, strict=True) for log in one]
        axes: Axes = {"x_name": "width", "y_name": "vectors until the first near pair", "log_y": True}
        means = tuple(math.exp(sum(one) / draws) for one in logs)
        curves.append(Curve(f"cosine {cosine}, drawn", tuple(map(float, tried)), means, **axes))
        law = tuple(map(math.exp, expected))
        curves.append(Curve(f"cosine {cosine}, beta law", tuple(map(float, widths)), law, **axes))
    off = sum(deviations) / len(deviations)
    allowed = 3.29 * DEVIATION_LOG / math.sqrt(len(deviations))
    ratios = {cosine: values[f"slope_{cosine}"] / values[f"rate_{cosine}"] for cosine in COSINES}
    values |= {"deviation_of_log": off, "allowed_deviation": allowed}
    return Outcome(
        all(abs(ratio - 1) <= 0.15 for ratio in ratios.values()) and abs(off) <= allowed and bounded,
        f"ln N is linear in the width up to {MANY:,} vectors, with "
        + ", ".join(f"{ratio:.2f} times the slope of -ln(1 - c^2)/4 at c = {c}" for c, ratio in ratios.items())
        + f"; {len(deviations)} draws of up to {most:,} vectors agree with the beta law (ln N off by {off:+.3f}, "
        f"allowed {allowed:.3f}): exponential where the cosine is fixed, with {values['width_of_50k_0.2']:,} "
        "dimensions for "
        f"{MANY:,} at 0.2",
        values,
        (Control("a rate twice as large", abs(ratios[0.3] / 2 - 1), 0.15),),
        tuple(curves),
    )


@check("directions.maximum", claim=21, part="b", kind="simulation")
def maximum(quick: bool) -> Outcome:
    """The largest cosine among 50,000 random directions falls slowly with the width: 0.38 in 256 dimensions."""
    number, widths = (2000, (64, 256)) if quick else (MANY, tuple(MAXIMA))
    generator, close = torch.Generator().manual_seed(0), True
    values: dict[str, float] = {}
    for d in widths:
        largest, foreseen = largest_cosine(unit_vectors(number, d, generator)), median_largest(number, d)
        values |= {f"largest_{d}": largest, f"foreseen_{d}": foreseen}
        close &= abs(largest - (foreseen if quick else MAXIMA[d])) <= 0.02
    welch = math.sqrt((MANY - 256) / (256 * (MANY - 1)))
    wide = median_largest(MANY, 12_288)
    expected = {d: values[f"foreseen_{d}"] if quick else MAXIMA[d] for d in widths}
    text = ", ".join(f"{values[f'largest_{d}']:.3f} at {d} (expected {expected[d]:.3f})" for d in widths)
    off = max(abs(values[f"largest_{d}"] - values[f"foreseen_{d}"]) for d in widths)
    narrower = median_largest(number, 128) - values["largest_256"]
    x = tuple(map(float, widths))
    return Outcome(
        close,
        f"the largest |cos| of {number:,} random directions is {text}, at most {off:.3f} from the median "
        f"of the beta law, which is {wide:.3f} at 12,288; no "
        f"set of {MANY:,} in 256 dimensions has less than {welch:.3f} (Welch 1974)",
        values | {"welch_256": welch, "foreseen_12288": wide},
        (Control("the same number in half of the dimensions", narrower, 0.02),),
        (
            Curve("drawn", x, tuple(values[f"largest_{d}"] for d in widths), "width", "largest |cos|", log_x=True),
            Curve("beta law", x, tuple(values[f"foreseen_{d}"] for d in widths), "width", "largest |cos|", log_x=True),
        ),
    )


def largest_cosine(vectors: Tensor, rows: int = 2048) -> float:
    """Return the largest |cos| of any two vectors, computed for some rows at a time to bound memory."""
    largest = 0.0
    for start in range(0, len(vectors), rows):
        block = vectors[start : start + rows]
        later = (block @ vectors[start + rows :].T).abs()
        own = (block @ block.T).tril(-1).abs()
        largest = max(largest, own.max().item(), later.max().item() if later.numel() else 0.0)
    return largest


def median_largest(number: int, d: int) -> float:
    """Return the median of the largest |cos| of `number` directions, where p N (N - 1) / 2 = ln 2."""
    low, high, target = 0.0, 1.0, math.log(2 * math.log(2) / (number * (number - 1)))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if log_pair_probability(middle, d) > target else (low, middle)
    return low


@check("directions.few", claim=21, part="c", kind="analytic")
def few(quick: bool) -> Outcome:
    """For a largest cosine of 1 / (2 sqrt d), no more than (4 d - 1) / 3 directions fit."""
    widths, steps = ((4, 8), 100) if quick else ((4, 8, 16, 32, 64), 1500)
    exact = all(
        math.isclose(most_by_welch(d, 1 / (2 * math.sqrt(d))), (4 * d - 1) / 3, rel_tol=1e-12) for d in range(2, 2049)
    )
    margins = {}
    for d in widths:
        number = math.floor((4 * d - 1) / 3) + 1
        margins[d] = spread(number, d, steps) * 2 * math.sqrt(d)
    return Outcome(
        exact and min(margins.values()) > 1,
        f"Welch's bound gives exactly (4 d - 1)/3 for all d to 2,048; of one more than that, moved apart as far as "
        f"{steps:,} steps of gradient descent bring them, the largest cosine stays above: "
        + ", ".join(f"{margin:.2f} times it at {d}" for d, margin in margins.items())
        + ": the number grows linearly, not exponentially, where the cosine shrinks with the root of the width",
        {f"margin_{d}": margin for d, margin in margins.items()},
        (Control("twice that number at 64 dimensions fits at a fixed 0.5", 0.5 - median_largest(170, 64), 0.0),),
    )


def most_by_welch(d: int, cosine: float) -> float:
    """Return the largest number of vectors without a larger |cos|, for c^2 < 1 / d (Welch 1974)."""
    # d (1 - c^2) / (1 - d c^2)
    return d * (1 - cosine**2) / (1 - d * cosine**2)


def spread(number: int, d: int, steps: int) -> float:
    """Return the smallest maximal |cos| that gradient descent reaches for some vectors."""
    vectors = unit_vectors(number, d, torch.Generator().manual_seed(d)).double().requires_grad_()
    optimizer, best = torch.optim.Adam([vectors], 0.02), 1.0
    for step in range(steps):
        unit = torch.nn.functional.normalize(vectors, dim=-1)
        cosines = (unit @ unit.T).tril(-1).abs()
        best = min(best, cosines.max().item())
        optimizer.zero_grad()
        # a power mean that approaches the maximum as its exponent grows
        (cosines ** (4 + 28 * step / steps)).sum().log().backward()
        optimizer.step()
    return best
