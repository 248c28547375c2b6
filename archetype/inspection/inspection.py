"""Inspection of a text in a model: one traced pass, and the views that the model's parts provide."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archetype.errors import SpecError, nearest
from archetype.inspection import figures
from archetype.inspection.attention import attention_paths, attention_view
from archetype.inspection.attribution import AttributionView, attribution_view
from archetype.inspection.experts import ExpertsView, experts_view
from archetype.inspection.inputs import Inputs, token_name
from archetype.inspection.lens import LensView, answering_stack, lens_view
from archetype.inspection.patching import PatchingView, patching_view
from archetype.inspection.recurrent import RecurrentView, recurrent_view
from archetype.inspection.residual import ResidualView, main_stack, residual_view
from archetype.inspection.trace import Trace
from archetype.inspection.view import View
from archetype.table import Table
from archetype.tokenizers import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VIEWS = ("summary", "attention", "lens", "residual", "experts", "recurrent", "attribution")


@dataclass(repr=False)
class Inspection(View):
    """All activations of a model for a text. As a view, an inspection is the summary.

    Attributes:
        trace: activations by name.
        tokenizer: tokenizer that names the tokens.
        labels: names of the classes.
    """

    trace: Trace
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()

    def attention(self, layer: int | str | None = None, head: int | None = None) -> View:
        """Return the statistics of all heads or of one layer's heads, or every step of a single head."""
        return attention_view(self.trace, layer, head)

    def lens(self, top: int = 5) -> LensView:
        """Return the logit lens: each layer's prediction at each position."""
        return lens_view(self.trace, self.name, top)

    def residual(self, stack: str | None = None) -> ResidualView:
        """Return the norms of the residual stream and of each sublayer's addition."""
        return residual_view(self.trace, stack)

    def experts(self, layer: int | str | None = None) -> ExpertsView:
        """Return the routing and the load of mixtures of experts."""
        return experts_view(self.trace, layer)

    def recurrent(self, layer: int | str | None = None) -> RecurrentView:
        """Return states and gates of layers without attention."""
        return recurrent_view(self.trace, layer)

    def attribution(
        self, token: int | str | None = None, position: int = -1, layer: int | str | None = None
    ) -> AttributionView:
        """Attribute a token's logit (default: the most likely token) to the parts, or also to the heads of `layer`."""
        return attribution_view(self.trace, self.name, self._id(token), position, layer)

    def patching(self, corrupt: Inputs, part: str = "out") -> PatchingView:
        """Find activations of this text that restore its answer in a corrupt text with the same number of tokens."""
        return patching_view(self.trace, corrupt, self.name, part)

    def view(self, name: str, layer: int | str | None = None, head: int | None = None) -> View:
        """Return a view by name.

        Args:
            name: one of `VIEWS`.
            layer: number or path of a layer, for views by layer.
            head: index of an attention head.

        Raises:
            SpecError: the view does not exist, the model does not support it, or it takes no layer or head.
        """
        if head is not None and name != "attention":
            raise SpecError("head", f"the view {name} has no heads", "use the view attention")
        if layer is not None and name in ("summary", "lens", "residual"):
            raise SpecError("layer", f"the view {name} always shows all layers", "remove it")
        match name:
            case "summary":
                return self
            case "attention":
                return self.attention(layer, head)
            case "lens":
                return self.lens()
            case "residual":
                return self.residual()
            case "experts":
                return self.experts(layer)
            case "recurrent":
                return self.recurrent(layer)
            case "attribution":
                return self.attribution(layer=layer)
        raise SpecError("view", f"'{name}' is not a view", nearest(name, VIEWS))

    @property
    def views(self) -> list[str]:
        return [name for name in VIEWS if self._try(name) is not None]

    @property
    @torch.no_grad()
    def max_logit_difference(self) -> float:
        """Largest difference between the logits of the traced pass and of an untraced pass, normally 0.0."""
        plain = self.trace.model(**self.trace.inputs.arguments).logits
        return 0.0 if plain is None or self.trace.logits is None else float((plain - self.trace.logits).abs().max())

    def name(self, id: int) -> str:
        if self.trace.logits is not None and self.trace.logits.dim() == 2:
            return self.labels[id] if id < len(self.labels) else str(id)  # logits (B, Y) are of classes
        return token_name(self.tokenizer, id)

    def table(self) -> Table:
        """Tabulate the norms of the residual stream and the predictions at the last position, by layer."""
        residual, lens = self._try("residual"), self._try("lens")
        entropies = self._attention_entropies()
        if not isinstance(residual, ResidualView):
            return Table(("", "prediction"), [("model", self._answers())], text_columns=2)
        headings = ["", "prediction", "norm", *residual.added, "attention entropy"]
        rows = []
        for index, layer in enumerate(residual.layers):
            answer = ""
            if isinstance(lens, LensView) and answering_stack(self.trace) == main_stack(self.trace):
                best = zip(lens.names[index][-1][:3], lens.log_probabilities[index, -1].exp().tolist(), strict=False)
                answer = "  ".join(f"{name} {value:.1%}" for name, value in best)
            # row 0 is the embedding, to which no layer has added
            norms = ("" if index == 0 else _number(values[index - 1]) for values in residual.added.values())
            entropy = entropies.get(index - 1)
            cells = (_number(residual.norms[index]), *norms, "" if entropy is None else f"{entropy:.3f}")
            rows.append((layer, answer, *cells))
        return Table(headings, rows, text_columns=2)

    def record(self) -> dict[str, Any]:
        """Return the tokens, the data of all available views, and the model's predictions."""
        inputs = self.trace.inputs
        data: dict[str, Any] = {"tokens": [*inputs.tokens]}
        if inputs.source_tokens:
            data["source_tokens"] = [*inputs.source_tokens]
        data["max_logit_difference"] = self.max_logit_difference
        views = {name: view.record() for name in VIEWS[1:] if (view := self._try(name)) is not None}
        return data | {"views": [*views], "answers": self._best()} | views

    def tensors(self) -> dict[str, Tensor]:
        logits = self.trace.logits
        return {**self.trace.activations, **({} if logits is None else {"logits": logits})}

    def draw(self) -> "Figure":
        residual, lens = self._try("residual"), self._try("lens")
        # n-gram models have no stack
        if not isinstance(residual, ResidualView):
            return self.recurrent().draw()
        if not isinstance(lens, LensView):
            return residual.draw()
        width = max(5.0, 0.78 * min(len(lens.tokens), 16) + 2.0)
        figure = figures.new_figure(width + 4.0, max(3.2, 0.36 * len(lens.layers) + 1.4))
        left, right = figure.subplots(1, 2, width_ratios=(width, 3.6))
        lens.draw_on(figure, left)
        residual.draw_on(right)
        return figure

    def __repr__(self) -> str:
        return f"<Inspection of {len(self.trace.inputs.tokens)} positions of a {self.trace.model.spec.kind}>"

    def _try(self, name: str) -> View | None:
        try:
            return self.view(name)
        except SpecError:
            return None

    def _attention_entropies(self) -> dict[int, float]:
        # mean over heads, by layer number
        main = [path for path in attention_paths(self.trace) if path.endswith(".mixer") and "encoder" not in path]
        if not main:
            return {}
        view: Any = self.attention()
        entropies = {}
        for path, values in zip(view.paths, view.statistics, strict=True):
            if path in main and "local_model" not in path:
                entropies[int(path.split(".")[-2])] = float(values["entropy"].mean())
        return entropies

    def _best(self, top: int = 5) -> list[dict[str, Any]]:
        if self.trace.logits is None:
            return []
        logits = self.trace.logits[0, -1] if self.trace.logits.dim() == 3 else self.trace.logits[0]
        best = logits.float().softmax(-1).topk(min(top, len(logits)))
        return [
            {"id": id, "name": self.name(id), "probability": value}
            for value, id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def _answers(self) -> str:
        return "  ".join(f"{answer['name']} {answer['probability']:.1%}" for answer in self._best())

    def _id(self, token: int | str | None) -> int | None:
        if not isinstance(token, str):
            return token
        ids = [] if self.tokenizer is None else self.tokenizer.encode(token)
        if len(ids) != 1:
            raise SpecError("token", f"{token!r} is {len(ids)} tokens", "pass a single token, or its id")
        return ids[0]


def _number(values: Tensor) -> str:
    mean = float(values.mean())
    return "" if mean != mean else f"{mean:.3f}"  # empty for NaN
