"""Diagrams of n-gram models."""

from archetype.models.ngram.cost import NGramCost
from archetype.models.ngram.spec import NGram
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Step, Stream, Streams, Text, pill, title
from archetype.spec.registry import provides


@provides("diagram", NGram)
def ngram(model: NGram, cost: NGramCost, text: Text) -> Streams:
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
