"""Direct logit attribution: a logit as a sum over the parts' additions to the residual stream (Elhage 2021)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.lens import Name, answering_stack, residual_names
from archetype.inspection.names import join, layer_path, module_at, shown_parts, stacks
from archetype.inspection.residual import added_by, output_scale
from archetype.inspection.trace import Trace
from archetype.inspection.view import View
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.inspect import FrozenNorm
from archetype.parts.head.module import LanguageModelHead
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = 40  # largest number of bars in a chart


@dataclass(frozen=True)
class Contribution:
    """Contribution of a part to the logit; `kind` is embedding, mixer, cross, feedforward or bias."""

    name: str
    kind: str
    logit: float


@dataclass
class AttributionView(View):
    """Logit before a softcap, and the contributions that sum to this logit, in the order of layers."""

    position: int
    token: int
    name: str
    logit: float
    contributions: list[Contribution]

    def table(self) -> Table:
        rows = [(part.name, f"{part.logit:+.4f}") for part in self.contributions]
        return Table((f"logit of {self.name} after position {self.position}", f"{self.logit:+.4f}"), rows)

    def record(self) -> dict[str, Any]:
        return vars(self) | {"contributions": [vars(part) for part in self.contributions]}

    def tensors(self) -> dict[str, Tensor]:
        return {"contributions": torch.tensor([part.logit for part in self.contributions])}

    def draw(self) -> "Figure":
        parts = self.contributions
        if len(parts) > BARS:
            largest = sorted(parts, key=lambda part: -abs(part.logit))[:BARS]
            parts = [part for part in parts if part in largest]
        figure = figures.new_figure(6.8, 0.23 * len(parts) + 1.1)
        axes = figure.subplots()
        rows = range(len(parts))
        axes.barh(
            rows, [part.logit for part in parts], color=[figures.COLORS[part.kind] for part in parts], height=0.72
        )
        axes.set_yticks(rows, [part.name for part in parts], fontsize=8, parse_math=False)
        axes.invert_yaxis()
        axes.axvline(0, color=figures.INK, linewidth=0.6)
        figures.plain(axes, grid=True)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("logit", fontsize=8)
        figures.title(axes, f"Logit {self.logit:+.2f} of {self.name} after position {self.position}, by part")
        return figure


@torch.no_grad()
def attribution_view(
    trace: Trace, name: Name, token: int | None = None, position: int = -1, layer: int | str | None = None
) -> AttributionView:
    """Attribute a token's logit to the parts of the model, with the statistics of the final norm held fixed.

    Args:
        name: returns the name of a token id.
        token: token id (default: the most likely token).
        position: position of the prediction; negative positions count from the end.
        layer: layer whose attention is split into heads (default: no layer).

    Raises:
        SpecError: the residual stream is not a sum, the head is not linear, or the position does not exist.
    """
    model, stack = trace.model, answering_stack(trace)
    if not isinstance(model, Decoder | Encoder | EncoderDecoder) or model.lm_head is None:
        raise SpecError("attribution", "needs a head over the vocabulary", "use the lens instead")
    if not stacks(model)[stack].residual.is_sum:
        raise SpecError("attribution", "this model's residual stream is not a plain sum", "use the lens instead")
    if stacks(model)[stack].passes:
        cause = "the norm between the passes of this model's loop is not linear"
        raise SpecError("attribution", cause, "use the lens instead")
    assert trace.logits is not None
    length, vocab_size = trace.logits.shape[1:]
    if not -length <= position < length:
        raise SpecError("position", f"{position} is out of range", f"use 0 to {length - 1}")
    position %= length
    at = max(position - 1, 0) if model.lm_head.shifted else position  # of the vector that the head reads
    token = int(trace.logits[0, position].argmax()) if token is None else token
    if not 0 <= token < vocab_size:
        raise SpecError("token", f"{token} is out of range", f"use 0 to {vocab_size - 1}")
    split = None if layer is None else layer_path(model, layer)
    points = [*residual_names(trace, stack).values()]
    final, constant = frozen_norm(trace, join(stack, "final_norm"), trace[points[-1]][0, at])
    row, bias = _row(model.lm_head, model.embedding.token.weight, token)

    def part(label: str, kind: str, x: Tensor) -> Contribution:
        return Contribution(label, kind, float(final(x.double()) @ row))  # x (D,)

    parts = [part("embedding", "embedding", trace[points[0]][0, at])]
    reinjected = stacks(model)[stack].reinjected
    if stacks(model)[stack].of_unit_length:
        raise SpecError("attribution", "vectors are scaled between the passes of a loop", "use the lens instead")
    for index, point in enumerate(points[1:]):
        path = point.removesuffix(".out")
        added = added_by(trace, path)
        if added is None:
            cause = f"the output of {path} is not its input plus the outputs of its parts"
            raise SpecError("attribution", cause, "use the lens instead")
        if (source := reinjected.get(index)) is not None:
            again = trace[f"{path}.in"] - trace[points[index]]  # (B, T, D) added again before this layer
            parts.append(part(f"layer {index} input of layer {source}", "embedding", again[0, at]))
        factor = output_scale(module_at(model, path))  # type: ignore[arg-type]
        parts = [replace(earlier, logit=earlier.logit * factor) for earlier in parts]
        for content, x in added.items():
            heads = _by_head(trace, path) if path == split and content == "mixer" else None
            if heads is None:
                parts.append(part(f"layer {index} {content}", content, x[0, at]))
                continue
            scale: float = module_at(model, path).residual_scale * factor  # type: ignore[assignment, operator]
            for head, y in enumerate(heads[:, at].double() * scale):
                parts.append(part(f"layer {index} head {head}", content, y))
            # heads are split before the output bias, which belongs to none of them
            if module_at(model, f"{path}.mixer.o").bias is not None:
                rest = x[0, at].double() - heads[:, at].double().sum(0) * scale
                parts.append(part(f"layer {index} bias of o", "bias", rest))
    parts.append(Contribution("biases of the last norm and head", "bias", float(constant @ row) + bias))
    return AttributionView(position, token, name(token), sum(contribution.logit for contribution in parts), parts)


def frozen_norm(trace: Trace, path: str, x: Float[Tensor, "D"]) -> FrozenNorm:
    """Linearize a norm at a vector (D,) with its statistics held fixed, in float64.

    Raises:
        SpecError: the norm is an extension without a linearization.
    """
    norm, frozen = trace.model.get_submodule(path), shown_parts(trace.model)[path].frozen
    if frozen is None:
        cause = f"the last norm, {type(norm).__name__}, cannot be split into parts"
        raise SpecError("attribution", cause, "use the lens instead")
    return frozen(norm, x)


def _row(head: LanguageModelHead, embedding: Any, token: int) -> tuple[Float[Tensor, "D"], float]:
    # a token's row of the head's table, and its bias: row times vector plus bias is the uncapped logit
    table = embedding if head.weight is None else head.weight
    if head.dense is not None or not isinstance(table, Tensor):
        cause = "the head transforms its vectors" if head.dense is not None else "the head's table is quantized"
        raise SpecError("attribution", f"{cause}, so a logit is not a sum of contributions", "use the lens instead")
    row = table[token].double() * head.spec.scale
    if head.gain is not None:
        row = row * float(head.gain.factors()[token])
    return row, 0.0 if head.bias is None else float(head.bias[token])


def _by_head(trace: Trace, path: str) -> Float[Tensor, "H T D"] | None:
    block = module_at(trace.model, path)
    weight = getattr(getattr(block.mixer, "o", None), "weight", None)
    # a norm after the content mixes the heads, and a quantized matrix has no weights to split
    if block.added or f"{path}.mixer.heads" not in trace or not isinstance(weight, Tensor):
        return None
    heads = trace[f"{path}.mixer.heads"][0]  # (H, T, Q)
    # o's columns by head: (D, H, Q); without the output bias
    return torch.einsum("htp,dhp->htd", heads, weight.to(heads.dtype).unflatten(1, (heads.shape[0], -1)))
