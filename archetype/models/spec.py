"""Base classes of model specifications."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from archetype.models.initialization_spec import Initialization
from archetype.models.stack.spec import StackView
from archetype.parts.head.spec import NoHead
from archetype.spec.errors import invalid
from archetype.spec.kinds import ByKind, Part, load_all_kinds

__all__ = ["CausalSpec", "ModelSpec", "leaves_vocabulary_open"]

SCHEMA_VERSION = 1


class ModelSpec(Part):
    """Base class of model specifications.

    Attributes:
        version: version of the file format.
        name: name of the model; does not affect results.
    """

    needs: ClassVar[str] = "module"
    is_causal: ClassVar[bool] = False  # whether it generates text from left to right
    reads_source: ClassVar[bool] = False  # whether it reads a source text in addition
    reads_images: ClassVar[bool] = False  # instead of tokens
    embeds_tokens: ClassVar[bool] = False  # whether it computes a vector for each token of a text
    can_classify: ClassVar[bool] = False  # whether it may have a classification head
    shares_positions: ClassVar[bool] = False  # whether it supports context parallelism
    version: Literal[1] = 1
    name: str = ""

    if TYPE_CHECKING:  # a field or property of every kind

        @property
        def context_length(self) -> int: ...

        @property
        def head(self) -> Any: ...

        @property
        def initialization(self) -> Initialization: ...

    @model_validator(mode="before")
    @classmethod
    def _version_is_known(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("version", SCHEMA_VERSION) != SCHEMA_VERSION:
            cause = f"schema version {data['version']!r:.40} is unknown"
            invalid("version", cause, f"this version of Archetype reads version {SCHEMA_VERSION}")
        return data

    @model_validator(mode="after")
    def _stacks_hold(self) -> "ModelSpec":
        for stack in self.stacks:
            stack.check()
        if (embedding := getattr(self, "embedding", None)) is not None:
            embedding.check(getattr(self, "d_model"))  # noqa: B009
            if embedding.layer_features and not any(stack.layer_features for stack in self.stacks):
                cause = "is supported only by models with a single token stack, such as decoders"
                invalid("embedding.per_layer", cause, "remove it")
            if self.head.shares_table and not embedding.is_table:
                cause = f"an embedding of kind {embedding.kind} has no table of width d_model"
                invalid("head.tied", cause, "use tied: false")
            width = getattr(self, "d_model")  # noqa: B009
            ours, theirs = self.head.table_width or width, embedding.table_width or width
            if self.head.shares_table and ours != theirs:
                cause = f"the embedding's table has {theirs} features, but the head's vectors have {ours}"
                invalid("head.tied", cause, "set both to the same width, or use tied: false")
            if self.head.shares_table and (rows := embedding.unpredicted_rows):
                cause = f"the embedding's table has {rows} rows beyond the vocabulary, which are never predicted"
                invalid("head.tied", cause, "use tied: false, or remove extra_rows")
        return self

    @property
    def stacks(self) -> tuple[StackView, ...]:
        return ()

    @property
    def further_stack(self) -> StackView | None:
        """The blocks for multi-token prediction, used in training and speculation only."""
        return None

    @property
    def input_vocab_size(self) -> int:
        """Vocabulary size of the input; 0 for images."""
        return getattr(self, "vocab_size", 0)

    @property
    def num_layers(self) -> int:
        return sum(len(stack.layers) for stack in self.stacks)

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """Number of channels and side length in pixels of the input images; None for text models."""
        return None

    @property
    def continues_text(self) -> bool:
        """Whether the model computes logits of the next token of a text."""
        return False

    @property
    def writes_target(self) -> bool:
        """Whether the model computes logits of the next token of a target, given a source."""
        return False

    @property
    def fills_masks(self) -> bool:
        """Whether the model computes logits of masked tokens."""
        return False

    @property
    def divides_into_stages(self) -> bool:
        """Whether the model supports pipeline parallelism, for which stages must not share modules."""
        return False

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """Return the model with a new classification head as in transformers (with a pooler for encoders).

        Args:
            of_tokens: whether to classify tokens instead of texts.
        """
        raise NotImplementedError

    def with_sentence_head(self) -> Self:
        raise NotImplementedError

    def without_sentence_head(self) -> Self:
        # config.json cannot express a sentence embedding head
        return self.replace(head=NoHead()) if self.head.embeds else self

    @property
    def follows_length(self) -> bool:
        """Whether rotary angles depend on the sequence length, so that a sequence must be read as a whole."""
        return any(block.mixer.keys_follow_length for stack in self.stacks for block in stack.layers)

    @property
    def rereads_past(self) -> frozenset[int]:
        """Lengths beyond which a growing sequence must be prefilled again, since a layer's state becomes invalid."""
        lengths = (block.mixer.rereads_past for stack in self.stacks for block in stack.layers)
        return frozenset(length for length in lengths if length is not None)


class CausalSpec(ModelSpec):
    """Base class of specifications of models that generate text from left to right."""

    is_causal: ClassVar[bool] = True

    if TYPE_CHECKING:

        @property
        def vocab_size(self) -> int: ...

    @property
    def continues_text(self) -> bool:
        return bool(self.head.predicts_next)


AnyModel = Annotated[ModelSpec, ByKind(ModelSpec, default="decoder")]


def leaves_vocabulary_open(source: Any) -> bool:
    """Whether a specification in plain data leaves its vocabulary size to the tokenizer."""
    if not isinstance(source, Mapping) or "vocab_size" in source:
        return False
    load_all_kinds()
    kind = ModelSpec.kinds.get(str(source.get("kind", "decoder")))
    return kind is None or "vocab_size" in kind.model_fields
