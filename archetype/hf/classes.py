"""Classification models for texts, tokens and images in transformers."""

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import (
    ImageClassifierOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)

from archetype.hf.base import ArchetypePreTrainedModel, check_kind
from archetype.hf.configuration import ArchetypeConfig
from archetype.hf.model import ArchetypeModel
from archetype.hf.passes import Pass
from archetype.nn.context import ForwardContext


class _Classifier(ArchetypePreTrainedModel):
    """Base of the classification models."""

    of_tokens = of_images = False

    def __init__(self, config: ArchetypeConfig) -> None:
        super().__init__(config)
        spec, head = config.architecture, config.architecture.head
        check_kind(self, spec.reads_images == self.of_images, f"read {'images' if self.of_images else 'texts'}")
        fits = head.has_classes and head.labels_tokens == self.of_tokens
        if not fits or getattr(head, "num_classes") != config.num_labels:  # noqa: B009
            # a head of another kind or number of classes is replaced by a new one, as in transformers
            config.describe(spec.with_class_head(config.num_labels, self.of_tokens))
        self.model = ArchetypeModel(config, keeps_head=True)
        self.classifier: Any = self.model.take_head()
        self.post_init()

    def logits(self, result: Pass) -> Tensor:
        """Return logits (B, Y), or (B, T, Y) for tokens."""
        assert result.output.hidden is not None
        hidden = result.output.hidden
        context = ForwardContext.of(hidden, num_tokens=result.rows.num_tokens)
        logits: Tensor = self.model.network.class_logits(hidden, context, self.classifier)
        return result.rows.restored(logits) if self.of_tokens else logits  # tokens at their original columns

    def loss(self, logits: Tensor, labels: Tensor | None, arguments: dict[str, Any]) -> Tensor | None:
        """Return transformers' loss, which depends on `problem_type`, or on the shape and type of the labels."""
        if labels is None:
            return None
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **arguments)


class ArchetypeForSequenceClassification(_Classifier):
    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> SequenceClassifierOutputWithPast:
        """Return logits (B, Y), and the loss if there are labels. Other arguments: see `ArchetypeModel.run`."""
        items = _items(arguments)
        result = self.model.run(input_ids, **arguments)
        logits = self.logits(result)
        loss = self.loss(logits, labels, items)
        return SequenceClassifierOutputWithPast(loss=loss, logits=logits, hidden_states=result.hidden_states)


class ArchetypeForTokenClassification(_Classifier):
    of_tokens = True

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> TokenClassifierOutput:
        """Return logits (B, T, Y), and the loss if there are labels. Other arguments: see `ArchetypeModel.run`."""
        items = _items(arguments)
        result = self.model.run(input_ids, **arguments)
        logits = self.logits(result)
        loss: Tensor | None = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config, **items)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=result.hidden_states)


class ArchetypeForImageClassification(_Classifier):
    main_input_name = "pixel_values"
    of_images = True

    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> ImageClassifierOutput:
        """Return logits (B, Y) for images (B, C, H, W), and the loss if there are labels."""
        items = _items(arguments)
        result = self.model.run(pixel_values=pixel_values, **arguments)
        logits = self.logits(result)
        loss = self.loss(logits, labels, items)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=result.hidden_states)


def _items(arguments: dict[str, Any]) -> dict[str, Any]:
    # arguments of the loss, which must not reach the model
    name = "num_items_in_batch"
    return {name: arguments.pop(name)} if name in arguments else {}
