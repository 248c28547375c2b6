"""Logit lens: predictions that the model would make if it stopped after each layer (nostalgebraist 2020)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.names import stacks
from archetype.inspection.trace import Trace
from archetype.inspection.view import View, rounded
from archetype.models.build import Model
from archetype.models.encoder.module import Encoder
from archetype.models.megabyte.module import MegaByte
from archetype.nn.context import ForwardContext
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSITIONS = 16  # positions shown in a figure
Name = Callable[[int], str]


def answering_stack(trace: Trace) -> str:
    """Return the path of the stack whose output the head reads.

    Raises:
        SpecError: the model has no stack or no head.
    """
    paths = stacks(trace.model)
    if not paths or trace.logits is None:
        kind = trace.model.spec.kind
        raise SpecError("lens", f"this model of kind {kind} has no layers before a head", "choose another view")
    return _last_stack(trace.model)


def _last_stack(model: Model) -> str:
    paths = stacks(model)
    return next((path for path in ("decoder", "local_model") if path in paths), next(iter(paths)))


def residual_names(trace: Trace, stack: str) -> dict[str, str]:
    """Return {label: activation} for the residual stream before the first layer and after each layer."""
    prefix = f"{stack}.blocks" if stack else "blocks"
    count = len(stacks(trace.model)[stack].blocks)
    return {"embedding": f"{prefix}.0.in"} | {f"layer {index}": f"{prefix}.{index}.out" for index in range(count)}


@torch.no_grad()
def read_out(trace: Trace, x: Float[Tensor, "B T ... D"]) -> Float[Tensor, "B T V"]:
    """Return the logits of the final norm and head for a residual stream; class logits only at one position."""
    model = trace.model
    stack = stacks(model)[_last_stack(model)]
    x = stack.leave(x)  # (B, T, D), also of several residual streams
    context = ForwardContext.of(x)
    y = stack.final_norm(x, context)
    if isinstance(model, MegaByte):  # byte t + 1 is predicted at its own slot
        # y is (B M, J, D): the slots of patches, one after the other, are the bytes of the text
        batch, length = trace.inputs.arguments["tokens"].shape
        y = y.reshape(batch, -1, y.shape[2])[:, 1 : length + 1].contiguous()  # (B, M J, D) to (B, T, D)
    if model.lm_head is not None:
        return model.lm_head(y, model.token_table)
    logits: Tensor = model.class_logits(y, context, model.classifier)
    return logits if model.spec.head.labels_tokens else logits[:, None]


@dataclass
class LensView(View):
    """Predictions after each layer.

    Attributes:
        layers: labels of the embedding and of each layer.
        tokens: tokens at the positions; a single token for a classifier.
        answers: ids of the most likely tokens or classes, with their names.
        log_probabilities: log-probabilities of `answers`, in nats.
        ranks: rank of the true next token (for an encoder, of the token itself), from 0; -1 if unknown.
        kl: KL divergence of the layer's distribution from the model's distribution, in nats.
        entropy: entropy of the layer's distribution, in nats.
    """

    layers: list[str]
    tokens: tuple[str, ...]
    answers: Int[Tensor, "layers T top"]
    names: list[list[list[str]]]
    log_probabilities: Float[Tensor, "layers T top"]
    ranks: Int[Tensor, "layers T"]
    kl: Float[Tensor, "layers T"]
    entropy: Float[Tensor, "layers T"]

    def table(self) -> Table:
        rows = []
        # at the last position
        for index, layer in enumerate(self.layers):
            probabilities = self.log_probabilities[index, -1].exp().tolist()
            answers = zip(self.names[index][-1], probabilities, strict=True)
            answer = "  ".join(f"{name} {probability:.1%}" for name, probability in answers)
            rows.append((layer, answer, f"{float(self.kl[index, -1]):.3f}", f"{float(self.entropy[index, -1]):.3f}"))
        return Table((f"after {figures.label(self.tokens[-1])}", "prediction", "KL to final", "entropy"), rows, 2)

    def record(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "tokens": [*self.tokens],
            "answers": self.names,
            "ids": self.answers.tolist(),
            "log_probabilities": rounded(self.log_probabilities),
            "ranks": self.ranks.tolist(),
            "kl": rounded(self.kl),
            "entropy": rounded(self.entropy),
        }

    def tensors(self) -> dict[str, Tensor]:
        return {
            "ids": self.answers,
            "log_probabilities": self.log_probabilities,
            "ranks": self.ranks,
            "kl": self.kl,
            "entropy": self.entropy,
        }

    def draw(self) -> "Figure":
        shown = min(len(self.tokens), POSITIONS)
        figure = figures.new_figure(max(5.5, 0.78 * shown + 2.4), 0.36 * len(self.layers) + 1.5)
        self.draw_on(figure, figure.subplots())
        return figure

    def draw_on(self, figure: "Figure", axes: "Axes") -> None:
        """Draw layers upwards and positions across on a figure's axes. Long texts show only their last positions."""
        shown = min(len(self.tokens), POSITIONS)
        cell_names = [[cell[0] for cell in row[-shown:]] for row in self.names][::-1]  # the likeliest answers
        cells = self.log_probabilities[:, -shown:, 0].exp().flip(0)
        image = figures.heat_map(
            axes, cells, self.layers[::-1], self.tokens[-shown:], low=0.0, high=1.0, texts=cell_names
        )
        figures.title(axes, "Logit lens: the likeliest answer after each layer")
        cut = f"the last {shown} of {len(self.tokens)} positions" if shown < len(self.tokens) else "position"
        axes.set_xlabel(f"{cut} (its token)", fontsize=8)
        figures.color_bar(figure, image, axes, "probability")


class LensLayer(NamedTuple):
    """Single layer of a `LensView`, with the same field names."""

    answers: Int[Tensor, "T top"]
    log_probabilities: Float[Tensor, "T top"]
    ranks: Int[Tensor, "T"]
    kl: Float[Tensor, "T"]
    entropy: Float[Tensor, "T"]


def lens_view(trace: Trace, name: Name, top: int = 5) -> LensView:
    """Return the predictions of each layer at each position of the first row.

    Args:
        name: returns the name of a token id or class.
        top: number of most likely tokens per position.

    Raises:
        SpecError: the model has no layers or no head, or `top` is below 1.
    """
    return lens_of_layers(trace, name, lens_layers(trace, top))


@torch.no_grad()
def lens_layers(trace: Trace, top: int = 5) -> Iterator[LensLayer]:
    """Yield the layers of a logit lens. Each layer needs a product with the complete head; see `lens_view`."""
    if top < 1:
        raise SpecError("top", f"{top} is below 1", "request at least one answer")
    points = residual_names(trace, answering_stack(trace))
    assert trace.logits is not None
    final = _of_positions(trace.logits)[0].float().log_softmax(-1)  # (T, V)
    targets, ids = torch.full(final.shape[:1], -1, device=final.device), trace.inputs.ids
    answers_tokens = getattr(trace.model, "classifier", None) is None
    if ids is not None and len(ids[0]) == len(final) and answers_tokens:
        if isinstance(trace.model, Encoder):
            targets = ids[0]
        else:
            # the last position has no next token
            targets[:-1] = ids[0, 1:]
    for point in points.values():
        logp = read_out(trace, trace[point])[0].float().log_softmax(-1)  # (T, V)
        best = logp.topk(min(top, logp.shape[1]))
        of_target = logp.gather(1, targets.clamp(min=0)[:, None])  # (T, 1)
        ranks = (logp > of_target).sum(1).masked_fill(targets < 0, -1)
        kl = (final.exp() * (final - logp)).nansum(-1).clamp(min=0)  # masked tokens: 0 * (-inf + inf) is NaN
        yield LensLayer(best.indices, best.values, ranks, kl, torch.special.entr(logp.exp()).sum(-1))


def lens_of_layers(trace: Trace, name: Name, layers: Iterable[LensLayer]) -> LensView:
    answers, values, ranks, kl, entropy = (torch.stack(column) for column in zip(*layers, strict=True))
    names = [[[name(id) for id in cell] for cell in row] for row in answers.tolist()]
    tokens = trace.inputs.tokens if len(trace.inputs.tokens) == answers.shape[1] else ("the whole",)
    points = residual_names(trace, answering_stack(trace))
    return LensView([*points], tokens, answers, names, values, ranks, kl, entropy)


def _of_positions(logits: Tensor) -> Tensor:
    return logits if logits.dim() == 3 else logits[:, None]
