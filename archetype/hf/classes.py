"""Models that answer with classes: of texts, of tokens, of pictures."""

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
    """Base of the three: a model whose head was for something else, or for another number of classes, gets a new one.

    Attributes:
        model: gives the vectors.
        classifier: gives the logits of one vector.
    """

    of_tokens = of_images = False

    def __init__(self, config: ArchetypeConfig) -> None:
        super().__init__(config)
        spec, head = config.architecture, config.architecture.head
        check_kind(self, spec.reads_images == self.of_images, f"read {'pictures' if self.of_images else 'texts'}")
        fits = head.has_classes and head.labels_tokens == self.of_tokens
        if not fits or getattr(head, "num_classes") != config.num_labels:  # noqa: B009
            config.describe(spec.with_class_head(config.num_labels, self.of_tokens))
        self.model = ArchetypeModel(config, keeps_head=True)
        self.classifier: Any = self.model.take_head()
        self.post_init()

    def logits(self, result: Pass) -> Tensor:
        """Of classes, (B, Y), or of classes of tokens, (B, T, Y)."""
        assert result.output.hidden is not None
        hidden = result.output.hidden
        context = ForwardContext.of(hidden, num_tokens=result.rows.num_tokens)
        logits: Tensor = self.model.network.class_logits(hidden, context, self.classifier)
        return result.rows.restored(logits) if self.of_tokens else logits

    def loss(self, logits: Tensor, labels: Tensor | None, arguments: dict[str, Any]) -> Tensor | None:
        """As transformers computes it of such a model: by `problem_type`, or by the form of the labels."""
        if labels is None:
            return None
        loss: Tensor = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **arguments)
        return loss


class ArchetypeForSequenceClassification(_Classifier):
    """Logits of the classes of each text."""

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> SequenceClassifierOutputWithPast:
        """Logits, (B, Y), and with labels the loss; arguments as of `ArchetypeModel.run`."""
        items = _items(arguments)
        result = self.model.run(input_ids, **arguments)
        logits = self.logits(result)
        loss = self.loss(logits, labels, items)
        return SequenceClassifierOutputWithPast(loss=loss, logits=logits, hidden_states=result.hidden_states)


class ArchetypeForTokenClassification(_Classifier):
    """Logits of the classes of each token."""

    of_tokens = True

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> TokenClassifierOutput:
        """Logits, (B, T, Y), and with labels the loss; arguments as of `ArchetypeModel.run`."""
        items = _items(arguments)
        result = self.model.run(input_ids, **arguments)
        logits = self.logits(result)
        loss: Tensor | None = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config, **items)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=result.hidden_states)


class ArchetypeForImageClassification(_Classifier):
    """Logits of the classes of each picture."""

    main_input_name = "pixel_values"
    of_images = True

    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> ImageClassifierOutput:
        """Logits, (B, Y), of pictures, (B, C, H, W), and with labels the loss."""
        items = _items(arguments)
        result = self.model.run(pixel_values=pixel_values, **arguments)
        logits = self.logits(result)
        loss = self.loss(logits, labels, items)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=result.hidden_states)


def _items(arguments: dict[str, Any]) -> dict[str, Any]:
    """What is the loss's and not the model's."""
    name = "num_items_in_batch"
    return {name: arguments.pop(name)} if name in arguments else {}
