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

    def classify(self, labels: Tensor | None, **arguments: Any) -> dict[str, Any]:
        """Return the logits, (B, Y), or (B, T, Y) for tokens, the loss if there are labels, and the hidden states.

        Args:
            arguments: of `ArchetypeModel.run`, and `num_items_in_batch` of the loss.
        """
        items = {name: arguments.pop(name) for name in ("num_items_in_batch",) if name in arguments}
        result = self.model.run(**arguments)
        hidden = result.output.hidden
        assert hidden is not None
        context = ForwardContext.of(hidden, num_tokens=result.rows.num_tokens)
        logits: Tensor = self.model.network.class_logits(hidden, context, self.classifier)
        if self.of_tokens:
            logits = result.rows.restored(logits)  # tokens at their original columns
        loss: Tensor | None = None
        if labels is not None:
            # transformers' loss; without tokens, it depends on `problem_type`, or on the shape and type of the labels
            pair = (logits, labels) if self.of_tokens else (labels, logits)
            loss = self.loss_function(*pair, self.config, **items)
        return {"loss": loss, "logits": logits, "hidden_states": result.hidden_states}


class ArchetypeForSequenceClassification(_Classifier):
    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> SequenceClassifierOutputWithPast:
        """Return logits (B, Y), and the loss if there are labels. Other arguments: see `ArchetypeModel.run`."""
        return SequenceClassifierOutputWithPast(**self.classify(labels, input_ids=input_ids, **arguments))


class ArchetypeForTokenClassification(_Classifier):
    of_tokens = True

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> TokenClassifierOutput:
        """Return logits (B, T, Y), and the loss if there are labels. Other arguments: see `ArchetypeModel.run`."""
        return TokenClassifierOutput(**self.classify(labels, input_ids=input_ids, **arguments))


class ArchetypeForImageClassification(_Classifier):
    main_input_name = "pixel_values"
    of_images = True

    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> ImageClassifierOutput:
        """Return logits (B, Y) for images (B, C, H, W), and the loss if there are labels."""
        return ImageClassifierOutput(**self.classify(labels, pixel_values=pixel_values, **arguments))
