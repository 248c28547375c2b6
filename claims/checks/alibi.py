"""ALiBi: the published slopes, and scores that depend only on distance."""

import torch

from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.position.module import Alibi
from archetype.parts.position.spec import Alibi as AlibiSpec
from archetype.parts.position.spec import Learned, Sinusoidal
from archetype.studies.outcome import Control, Curve, Outcome
from archetype.studies.registry import check
from claims.small_models import (
    WRONG,
    attending,
    block,
    decoder,
    logits_at,
    random_model,
    random_tokens,
    relative_error,
)

# Press 2021, section 3; 12 heads have the slopes of 8, then every other slope of 16
PUBLISHED = {
    8: [2.0**-h for h in range(1, 9)],
    16: [2.0 ** (-h / 2) for h in range(1, 17)],
    12: [2.0**-h for h in range(1, 9)] + [2.0 ** (-h / 2) for h in (1, 3, 5, 7)],
}
LENGTH = 24


@check("alibi.slopes", claim=2, part="slopes", kind="analytic")
def slopes(quick: bool) -> Outcome:
    """The bias of a head is its published slope times the distance."""
    positions, error = torch.arange(LENGTH)[None], 0.0
    for heads, published in PUBLISHED.items():
        bias = Alibi(AlibiSpec(), Attention(num_heads=heads, head_dim=2).sizes(1))(positions, positions)[0]
        expected = -torch.tensor(published)[:, None, None] * (positions.T - positions).abs()
        error = max(error, relative_error(bias, expected))
    swapped = relative_error(bias.flip(0), expected)
    return Outcome(
        error <= 1e-6,
        f"biases of 8, 12 and 16 heads equal the published ones, with an error of {error:.1e} of the largest",
        {"error": error},
        (Control("slopes in reverse order", swapped, WRONG),),
        tuple(
            Curve(f"{len(published)} heads", tuple(map(float, range(1, heads + 1))), tuple(published), "head", "slope")
            for heads, published in PUBLISHED.items()
        ),
    )  # fmt: skip


@check("alibi.shift", claim=2, part="shift")
def shift(quick: bool) -> Outcome:
    """A model with ALiBi gives the same logits wherever its text begins; one with sinusoidal positions does not."""
    shifts = (1, 64) if quick else (1, 64, 1000, 100_000)
    model = random_model(attending(position=AlibiSpec()))
    tokens = random_tokens(model.spec, 2, LENGTH)
    here = logits_at(model, tokens, 0)
    error = max(relative_error(logits_at(model, tokens, by), here) for by in shifts)
    controls = []
    for name, position in (("sinusoidal", Sinusoidal()), ("learned", Learned())):
        other = random_model(decoder(block(), block(), embedding=Embedding(position=position)))
        moved = relative_error(logits_at(other, tokens, LENGTH), logits_at(other, tokens, 0))
        controls.append(Control(f"{name} positions", moved, WRONG))
    return Outcome(
        error <= 1e-10,
        f"logits of a text that begins up to {shifts[-1]:,} positions later differ by {error:.1e} of their size; with "
        f"sinusoidal positions by {controls[0].error:.2f}: this is what ALiBi has by construction, not yet that a "
        "trained model goes on working past its length",
        {"error": error},
        tuple(controls),
    )
