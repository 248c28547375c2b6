"""Diagrams of n-gram models."""

from collections.abc import Callable

from archetype.cost.formula import Formula
from archetype.models.ngram.cost import NGramCost
from archetype.models.ngram.spec import NGram
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Step, Stream, Streams, pill, streams_of, title


@streams_of(NGram)
def ngram(model: NGram, cost: NGramCost, text: Callable[[Formula], str]) -> Streams:
    """Draw concatenated vectors and the layers above them, without a residual stream."""
    steps = [
        pill("tokens", f"{model.n} newest tokens", "(B, n)"),
        Step("embedding.token", "embedding", "V × D", field="d_model"),
        Step("concatenation", "side by side", "(B, nD)", "operation", "n", slim=True, gives="hidden.0.in"),
    ]
    for index, (inputs, outputs) in enumerate(cost.hidden):
        shape = f"{text(inputs)} → {text(outputs)}"
        steps += [
            Step(f"hidden.{index}", f"hidden {index}", shape, "feedforward", f"hidden[{index}]"),
            Step(
                f"hidden.{index}.act",
                title(model.activation),
                "",
                "operation",
                "activation",
                slim=True,
                gives=f"hidden.{index + 1}.in" if index + 1 < len(cost.hidden) else "lm_head.in",
            ),
        ]
    return Streams((Stream((*steps, *head_steps(model.head, text(cost.width))), is_residual=False),))
