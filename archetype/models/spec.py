"""The root of a specification file: what all kinds of models share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from archetype.models.initialization_spec import Initialization
from archetype.models.stack.spec import StackView
from archetype.parts.head.spec import NoHead
from archetype.spec.base import invalid
from archetype.spec.kinds import ByKind, Part, load_all_kinds

__all__ = ["CausalSpec", "ModelSpec", "leaves_vocabulary_open"]

SCHEMA_VERSION = 1


class ModelSpec(Part):
    """Base of all kinds of models.

    Attributes:
        version: of the file format.
        name: what the model is called; it changes no number.
    """

    needs: ClassVar[str] = "module"
    is_causal: ClassVar[bool] = False  # whether it writes text token by token, each from those before alone
    reads_source: ClassVar[bool] = False  # whether it reads a text beside the one that it writes
    reads_images: ClassVar[bool] = False  # and no tokens
    embeds_tokens: ClassVar[bool] = False  # whether it gives a vector for each token of a text
    can_classify: ClassVar[bool] = False  # whether it may have a head for classes
    shares_positions: ClassVar[bool] = False  # whether processes may share the positions of its rows
    version: Literal[1] = 1
    name: str = ""

    if TYPE_CHECKING:  # what every kind has, as a field or as a property

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
            cause = f"schema version {data['version']!r:.40} is unknown here"
            invalid("version", cause, f"this Archetype reads version {SCHEMA_VERSION}")
        return data

    @model_validator(mode="after")
    def _stacks_hold(self) -> "ModelSpec":
        for stack in self.stacks:
            stack.check()
        if (embedding := getattr(self, "embedding", None)) is not None:
            embedding.check(getattr(self, "d_model"))  # noqa: B009
            if embedding.layer_features and not any(stack.layer_features for stack in self.stacks):
                cause = "it is read by the layers of one stack of tokens, as those of a decoder"
                invalid("embedding.per_layer", cause, "leave it out")
            if self.head.shares_table and not embedding.is_table:
                cause = f"an embedding of kind {embedding.kind} has no table of the model's width"
                invalid("head.tied", cause, "give the head a table of its own: tied: false")
            width = getattr(self, "d_model")  # noqa: B009
            ours, theirs = self.head.table_width or width, embedding.table_width or width
            if self.head.shares_table and ours != theirs:
                cause = f"the embedding's table has {theirs} features and the head's vectors have {ours}"
                invalid("head.tied", cause, "give both the same width, or the head a table of its own: tied: false")
        return self

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """Every stack of blocks, as it stands in the model."""
        return ()

    @property
    def further_stack(self) -> StackView | None:
        """The blocks that predict tokens after the next; a pass without training has no use for them."""
        return None

    @property
    def input_vocab_size(self) -> int:
        """Ids that it can read; 0 for a model of images."""
        return getattr(self, "vocab_size", 0)

    @property
    def num_layers(self) -> int:
        """L, of all stacks together."""
        return sum(len(stack.layers) for stack in self.stacks)

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """Channels and pixels of a side of the images that it reads; None where it reads text."""
        return None

    @property
    def continues_text(self) -> bool:
        """Whether it gives logits of the next token after a text."""
        return False

    @property
    def writes_target(self) -> bool:
        """Whether it gives logits of the next token of a target, whose source it has read."""
        return False

    @property
    def fills_masks(self) -> bool:
        """Whether it gives logits of tokens that are masked."""
        return False

    @property
    def divides_into_stages(self) -> bool:
        """Whether processes may have some of its layers each, for which nothing may belong to several of them."""
        return False

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """The same model with a new head for classes, as those of transformers: an encoder's behind a pooler.

        Args:
            num_classes: classes, Y.
            of_tokens: whether each token has one.
        """
        raise NotImplementedError

    def with_sentence_head(self) -> Self:
        """The same model with a head that gives the vector of each text."""
        raise NotImplementedError

    def without_sentence_head(self) -> Self:
        """The same model without such a head, which no published config.json describes."""
        return self.replace(head=NoHead()) if self.head.embeds else self

    @property
    def follows_length(self) -> bool:
        """Whether rotations depend on the length of the text, so that a text must be read whole."""
        return any(block.mixer.keys_follow_length for stack in self.stacks for block in stack.layers)

    @property
    def rereads_past(self) -> frozenset[int]:
        """Each length beyond which a text that grows is read anew, for some layer's state no longer serves."""
        lengths = (block.mixer.rereads_past for stack in self.stacks for block in stack.layers)
        return frozenset(length for length in lengths if length is not None)


class CausalSpec(ModelSpec):
    """Base of models that write text, token by token."""

    is_causal: ClassVar[bool] = True

    if TYPE_CHECKING:

        @property
        def vocab_size(self) -> int: ...

    @property
    def continues_text(self) -> bool:
        """Where its head predicts the next token."""
        return bool(self.head.predicts_next)


AnyModel = Annotated[ModelSpec, ByKind(ModelSpec, default="decoder")]


def leaves_vocabulary_open(source: Any) -> bool:
    """Whether a specification as plain data leaves the size of its vocabulary to the tokenizer."""
    if not isinstance(source, Mapping) or "vocab_size" in source:
        return False
    load_all_kinds()
    kind = ModelSpec.kinds.get(str(source.get("kind", "decoder")))
    return kind is None or "vocab_size" in kind.model_fields
