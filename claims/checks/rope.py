"""Rotary positions: scores depend only on distance, norms are kept, and when scores decay with distance."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from archetype.nn.context import ForwardContext
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.pattern.scores import ScoreFunction
from archetype.parts.position.module import Rotary
from archetype.parts.position.spec import Learned, YarnScaling
from archetype.parts.position.spec import Rotary as RotarySpec
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.small_models import (
    EXACT,
    WRONG,
    attending,
    block,
    decoder,
    logits_at,
    normal,
    random_model,
    random_tokens,
    relative_error,
)

LENGTH = 32
BANDS = ((1, 16), (16, 64), (64, 256), (256, 1024))
HEAD_DIM = 64


class MismatchedRotary(Rotary):
    """Planted mistake: tables for half-split pairs, applied to interleaved pairs."""

    def forward(self, x: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        cos, sin = (torch.cat((table, table), -1) for table in self.tables(positions, context, x.dtype))
        swapped = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        return x * cos + swapped * sin


def rotated(position: RotarySpec, x: Tensor, positions: Tensor, kind: type[Rotary] = Rotary) -> Tensor:
    """Rotate vectors (B, H, T, P) to their positions; the angles have the dtype of the vectors."""
    sizes = Attention(num_heads=x.shape[1], head_dim=x.shape[3], position=position).sizes(x.shape[1] * x.shape[3])
    positions = positions.to(x.dtype if x.dtype == torch.float64 else torch.int64)
    y: Tensor = kind(position, sizes)(x, positions[None], ForwardContext.of(positions[None]))
    return y


def scores(position: RotarySpec, q: Tensor, k: Tensor, first: int, kind: type[Rotary] = Rotary) -> Tensor:
    """Return scores (B, H, T, T) of queries and keys at positions from `first` on."""
    places = first + torch.arange(q.shape[2])
    return ScoreFunction(1.0).scores(rotated(position, q, places, kind), rotated(position, k, places, kind))


def layouts(head_dim: int) -> Iterator[RotarySpec]:
    """Yield both orders of pairs, on all or half of a head's features, with two bases."""
    for theta in (1e4, 5e5):
        for interleaved in (False, True):
            for dim in (None, head_dim // 2):
                yield RotarySpec(theta=theta, interleaved=interleaved, dim=dim)


@check("rope.shift", claim=1, part="a")
def shift(quick: bool) -> Outcome:
    """Rotary scores, and a model's logits, do not change when all positions are shifted by the same number."""
    head_dim, shifts = (16, (1, 1000)) if quick else (HEAD_DIM, (1, 7, 1000, 100_000))
    errors = {torch.float64: 0.0, torch.float32: 0.0}
    for dtype in errors:
        q, k = (normal(1, 2, LENGTH, head_dim, dtype=dtype, seed=seed) for seed in (0, 1))
        for position in layouts(head_dim):
            here = scores(position, q, k, 0)
            # in float32 an angle's rounding grows with the position: short texts alone are exact to 1e-5
            for by in shifts if dtype == torch.float64 else (1, LENGTH):
                errors[dtype] = max(errors[dtype], relative_error(scores(position, q, k, by), here))
    q, k = (normal(1, 2, LENGTH, head_dim, seed=seed) for seed in (0, 1))
    wrong = scores(RotarySpec(), q, k, 0, MismatchedRotary), scores(RotarySpec(), q, k, 1000, MismatchedRotary)
    model = random_model(attending(position=RotarySpec()))
    tokens = random_tokens(model.spec, 2, LENGTH)
    errors_of_logits = [relative_error(logits_at(model, tokens, by), logits_at(model, tokens, 0)) for by in shifts]
    learned = random_model(decoder(block(), block(), embedding=Embedding(position=Learned())))
    moved = relative_error(logits_at(learned, tokens, LENGTH), logits_at(learned, tokens, 0))
    grown = _errors_by_shift(head_dim, 4 if quick else 7)
    holds = all(error <= EXACT[dtype] for dtype, error in errors.items()) and max(errors_of_logits) <= 1e-10
    return Outcome(
        holds,
        f"scores at (i + n, j + n) and (i, j) differ by {errors[torch.float64]:.1e} of their size in float64 for n up "
        f"to {shifts[-1]:,}, and by {errors[torch.float32]:.1e} in float32 within {2 * LENGTH} positions; in float32 a "
        f"shift of {int(grown.x[-1]):,} costs {grown.y[-1]:.1e}, for there angles themselves are rounded",
        {
            "scores_float64": errors[torch.float64], "scores_float32": errors[torch.float32],
            "logits_float64": max(errors_of_logits), "float32_at_largest_shift": grown.y[-1],
        },
        (
            Control("half-split tables with interleaved pairs", relative_error(wrong[1], wrong[0]), WRONG),
            Control("learned positions", moved, WRONG),
        ),
        (grown,),
    )  # fmt: skip


def _errors_by_shift(head_dim: int, powers: int) -> Curve:
    q, k = (normal(1, 2, LENGTH, head_dim, dtype=torch.float32, seed=seed) for seed in (0, 1))
    shifts = [10**power for power in range(powers)]
    here = scores(RotarySpec(), q, k, 0)
    errors = [relative_error(scores(RotarySpec(), q, k, by), here) for by in shifts]
    axes: Axes = {"x_name": "shift (tokens)", "y_name": "error of scores", "log_x": True, "log_y": True}
    return Curve("float32", tuple(map(float, shifts)), tuple(errors), **axes)


@check("rope.norm", claim=1, part="b")
def norm(quick: bool) -> Outcome:
    """A rotation keeps the length of every query and key."""
    head_dim, places = (16, 1000) if quick else (HEAD_DIM, 100_000)
    positions = torch.linspace(0, places, LENGTH).long()
    errors = {torch.float64: 0.0, torch.float32: 0.0}
    for dtype in errors:
        x = normal(1, 2, LENGTH, head_dim, dtype=dtype)
        for position in layouts(head_dim):
            lengths = rotated(position, x, positions).norm(dim=-1)
            errors[dtype] = max(errors[dtype], relative_error(lengths, x.norm(dim=-1)))
    x = normal(1, 2, LENGTH, head_dim)
    yarn = RotarySpec(scaling=YarnScaling(factor=4.0, original_context_length=2048))
    grown = relative_error(rotated(yarn, x, positions).norm(dim=-1), x.norm(dim=-1))
    wrong = relative_error(rotated(RotarySpec(), x, positions, MismatchedRotary).norm(dim=-1), x.norm(dim=-1))
    return Outcome(
        all(error <= EXACT[dtype] for dtype, error in errors.items()),
        f"lengths change by {errors[torch.float64]:.1e} in float64 and {errors[torch.float32]:.1e} in float32 up to "
        f"position {places:,}; YaRN's factor, which is meant to, changes them by {grown:.2f}",
        {"float64": errors[torch.float64], "float32": errors[torch.float32]},
        (
            Control("half-split tables with interleaved pairs", wrong, WRONG),
            Control("YaRN's factor on cos and sin", grown, WRONG),
        ),
    )


@check("rope.decay", claim=1, part="c", kind="analytic")
def decay(quick: bool) -> Outcome:
    """A query equal to its key scores less in farther bands, an independent one the same at every distance."""
    last, draws = 1024, 200 if quick else 2000
    distances = torch.arange(last)
    aligned = score_by_distance(torch.ones(1, HEAD_DIM, dtype=torch.float64), 0, last)[0] / HEAD_DIM
    bands = [aligned[low:high].mean().item() for low, high in BANDS]
    rises = (aligned.diff() > 0).double().mean().item()
    q = normal(draws, HEAD_DIM, seed=2)
    independent = score_by_distance(q, None, last)  # (draws, distance)
    centred = distances.double() - distances.double().mean()
    slopes = independent @ centred / (centred @ centred)
    slope, error = slopes.mean().item(), slopes.std().item() / draws**0.5
    peaks = [int(score_by_distance(q[:8], away, last).argmax(-1).sub(away).abs().max()) for away in (0, 1, 17, 300)]
    falls = all(one > two for one, two in pairwise(bands))
    is_flat = abs(slope) < 3.29 * error  # p > .001
    axes: Axes = {"x_name": "distance (tokens)", "y_name": "mean score, of the largest possible"}
    x = tuple(distances[::8].double().tolist())
    shown = {
        "query equal to its key": aligned,
        "independent query and key": independent.mean(0) / HEAD_DIM,
        "key turned by 300": score_by_distance(torch.ones(1, HEAD_DIM, dtype=torch.float64), 300, last)[0] / HEAD_DIM,
    }
    return Outcome(
        falls and is_flat and max(peaks) == 0,
        "of a query equal to its key the mean score falls from band to band "
        f"({', '.join(f'{b:.2f}' for b in bands)} of the score at 0) though {rises:.0%} of single steps rise; "
        f"of independent ones it is 0 at every distance, deviation {independent.std().item():.1f}; of a key turned by "
        "m it is largest at distance m",
        {
            **{f"band_{low}_{high}": band for (low, high), band in zip(BANDS, bands, strict=True)},
            **{f"aligned_at_{at}": aligned[at].item() for at in (0, 10, 100, 1000)},
            "share_of_steps_that_rise": rises, "slope_of_independent": slope, "standard_error_of_slope": error,
            "deviation_of_independent": independent.std().item(), "largest_miss_of_peak": float(max(peaks)),
        },
        (Control("a slope where there is none: of the aligned scores", _standardized_slope(aligned), 3.29),),
        tuple(Curve(label, x, tuple(y[::8].tolist()), **axes) for label, y in shown.items()),
    )  # fmt: skip


def score_by_distance(q: Tensor, away: int | None, last: int) -> Tensor:
    """Return scores (N, distance) of queries at each distance from their key.

    Args:
        q: queries (N, P).
        away: the key is the query rotated by this many positions (None: an independent vector).
        last: distances, from 0.
    """
    position, row = RotarySpec(), q[None, :, None]  # (1, N, 1, P)
    k = normal(*q.shape, seed=3)[None, :, None] if away is None else rotated(position, row, torch.tensor([away]))
    queries = rotated(position, row.expand(-1, -1, last, -1), torch.arange(last))
    return ScoreFunction(1.0).scores(queries, k)[0, :, :, 0]


def _standardized_slope(y: Tensor) -> float:
    """Return the slope of a line through y, over its standard error."""
    x = torch.arange(len(y), dtype=torch.float64)
    x = x - x.mean()
    slope = (x @ y) / (x @ x)
    rest = y - y.mean() - slope * x
    return abs(slope.item()) / ((rest @ rest) / (len(y) - 2) / (x @ x)).sqrt().item()
