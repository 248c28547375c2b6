"""BatchNorm in a causal model: in training every token depends on later ones."""

import torch

from archetype.models.block.spec import PreNorm
from archetype.nn.context import ForwardContext
from archetype.parts.norm.spec import BatchNorm, LayerNorm, RMSNorm
from archetype.roles.norm import Norm
from archetype.studies.outcome import Control, Outcome
from archetype.studies.registry import check
from claims.small_models import (
    WRONG,
    attending,
    block,
    decoder,
    normal,
    random_model,
    random_tokens,
    relative_error,
)

LENGTH, SEEN = 16, 9


def leak(norm: Norm, training: bool) -> tuple[float, float]:
    """Return the relative change of outputs before a token when the token changes, and the gradient's largest entry."""
    layer = block(wiring=PreNorm(norm=norm), mixer=attending().layers[0].mixer)
    model = random_model(decoder(layer, layer, final_norm=norm)).train(training)
    # outputs before position SEEN, with another token there
    tokens = random_tokens(model.spec, 2, LENGTH)
    changed = tokens.clone()
    changed[:, SEEN] = (changed[:, SEEN] + 1) % model.spec.vocab_size
    before, after = (model(text).logits[:, :SEEN] for text in (tokens, changed))
    # the same from the vectors of layer 0: d outputs[:SEEN] / d inputs[SEEN:]
    x = normal(2, LENGTH, model.spec.d_model, seed=1).requires_grad_()
    y = model.run(x, ForwardContext.of(x))
    (gradient,) = torch.autograd.grad((y * normal(*y.shape, seed=2))[:, :SEEN].sum(), x)
    return relative_error(after, before), gradient[:, SEEN:].abs().max().item()


@check("batch_norm.causality", claim=14, part="a")
def causality(quick: bool) -> Outcome:
    """In training a causal model with BatchNorm is not causal: an output changes with the next token."""
    change, gradient = leak(BatchNorm(), training=True)
    others = {
        "LayerNorm in training": leak(LayerNorm(), True), "RMSNorm in training": leak(RMSNorm(), True),
        "BatchNorm in evaluation": leak(BatchNorm(), False),
    }  # fmt: skip
    silent = all(pair == (0.0, 0.0) for pair in others.values())
    return Outcome(
        change > WRONG and gradient > 0 and silent,
        f"with BatchNorm in training outputs change by {change:.1%} of their size with the next token, and their "
        f"gradient by it is not 0; with {', '.join(others)} both are exactly 0",
        {"change": change, "gradient": gradient, "largest_of_others": max(map(max, others.values()))},
        (Control("BatchNorm's own statistics in training, seen as a change", change, WRONG),),
    )
