"""Activation patching: which layer and position of a clean text restores its answer in a corrupt text (Meng 2022)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.inputs import Inputs
from archetype.inspection.names import layers
from archetype.inspection.trace import Trace, Tracer
from archetype.inspection.view import View, rounded
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 16  # copies of the corrupt text per pass, each patched at another position


@dataclass
class PatchingView(View):
    """Fraction of the answer that each activation restores.

    Attributes:
        part: name of the part whose output is patched in each layer.
        layers: paths of the layers.
        tokens: tokens of the clean text and of the corrupt text.
        answers: answers to the clean text and to the corrupt text.
        clean: logit of the clean answer minus logit of the corrupt answer, for the clean text.
        corrupt: the same difference for the corrupt text.
        effects: restored fraction of that difference, from 0 (nothing) to 1 (all).
    """

    part: str
    layers: list[str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    answers: tuple[str, str]
    clean: float
    corrupt: float
    effects: Float[Tensor, "layers T"]

    @property
    def columns(self) -> list[str]:
        """Clean tokens, with the corrupt token added where the two texts differ."""
        return [a if a == b else f"{a}/{b}" for a, b in zip(*self.tokens, strict=True)]

    def table(self) -> Table:
        best = self.effects.max(1)
        rows = [
            (layer, f"{position} {self.columns[position]}", f"{value:.1%}")
            for layer, position, value in zip(self.layers, best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        return Table((f"{self.part} of", "restores most at", "of the answer"), rows, text_columns=2)

    def record(self) -> dict[str, Any]:
        return vars(self) | {"tokens": [[*row] for row in self.tokens], "effects": rounded(self.effects)}

    def tensors(self) -> dict[str, Tensor]:
        return {"effects": self.effects}

    def draw(self) -> "Figure":
        figure = figures.new_figure(max(5.0, min(12.0, 0.3 * len(self.columns) + 2.2)), 0.26 * len(self.layers) + 1.9)
        axes = figure.subplots()
        limit = max(1.0, float(self.effects.abs().max()))
        image = figures.heat_map(
            axes, self.effects.flip(0), self.layers[::-1], self.columns, colors="RdBu", low=-limit, high=limit
        )
        figures.title(axes, f"How much of {self.answers[0]} over {self.answers[1]} the clean {self.part} restores", 9)
        figures.color_bar(figure, image, axes, "restored")
        return figure


@torch.no_grad()
def patching_view(clean: Trace, corrupt: Inputs, name: Any, part: str = "out") -> PatchingView:
    """Patch each activation of a part, taken from the clean text, into the pass for the corrupt text.

    Args:
        corrupt: text with the same number of tokens and a different answer.
        name: returns the name of a token id.
        part: "out" for the residual stream after each layer, or "mixer.out", "feedforward.out".

    Raises:
        SpecError: the texts differ in length, or have the same answer.
    """
    model = clean.model
    if clean.logits is None or clean.logits.dim() != 3 or clean.inputs.ids is None:
        raise SpecError("patching", "needs a model that predicts tokens", "use lm.trace(...).set(...)")
    if len(corrupt.tokens) != len(clean.inputs.tokens) or len(corrupt.source_tokens) != len(clean.inputs.source_tokens):
        cause = f"has {len(corrupt.tokens)} tokens, but the clean text has {len(clean.inputs.tokens)}"
        raise SpecError("corrupt", cause, "pass a text with as many tokens")
    corrupt_logits = Tracer(model, corrupt).run().logits
    assert corrupt_logits is not None
    answers = int(clean.logits[0, -1].argmax()), int(corrupt_logits[0, -1].argmax())
    if answers[0] == answers[1]:
        raise SpecError("corrupt", f"both texts have the answer {name(answers[0])}", "pass a text with another answer")

    def difference(logits: Tensor) -> Tensor:
        return (logits[:, -1, answers[0]] - logits[:, -1, answers[1]]).float()

    start, end = float(difference(corrupt_logits)[0]), float(difference(clean.logits)[0])
    paths = [path for path in layers(model) if f"{path}.{part}" in clean]
    length = len(clean.inputs.tokens)
    paths = [path for path in paths if clean[f"{path}.{part}"].shape[:2] == (1, length)]
    effects = torch.zeros(len(paths), length)
    for layer, path in enumerate(paths):
        source = clean[f"{path}.{part}"]
        # one pass patches up to ROWS positions, each in another copy of the corrupt text
        for positions in torch.arange(length).split(ROWS):
            copies = {key: value.expand(len(positions), *value.shape[1:]) for key, value in corrupt.arguments.items()}

            def patch(x: Tensor, positions: Tensor = positions, source: Tensor = source) -> Tensor:
                y = x.clone()
                y[torch.arange(len(positions)), positions] = source[0, positions]  # row i is patched at positions[i]
                return y

            inputs = Inputs(copies, corrupt.tokens, corrupt.source_tokens, corrupt.ids)
            logits = Tracer(model, inputs).set(f"{path}.{part}", patch).run().logits
            assert logits is not None
            effects[layer, positions] = ((difference(logits) - start) / (end - start)).cpu()
    names = name(answers[0]), name(answers[1])
    return PatchingView(part, paths, (clean.inputs.tokens, corrupt.tokens), names, end, start, effects)
