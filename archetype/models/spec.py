"""The root of a specification file: what all kinds of models share."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from archetype.models.initialization_spec import Initialization
from archetype.models.stack.spec import StackView
from archetype.spec.base import invalid
from archetype.spec.kinds import ByKind, Part

__all__ = ["CausalSpec", "ModelSpec"]

SCHEMA_VERSION = 1


class ModelSpec(Part):
    """Base of all kinds of models.

    Attributes:
        version: of the file format.
        name: what the model is called; it changes no number.
    """

    has_source: ClassVar[bool] = False  # whether it reads a source and writes its target
    reads_images: ClassVar[bool] = False  # and no tokens
    embeds_tokens: ClassVar[bool] = False  # whether it gives a vector for each token of a text
    version: Literal[1] = 1
    name: str = ""

    if TYPE_CHECKING:  # what every kind has, as a field or as a property

        @property
        def kind(self) -> str: ...

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
            embedding.position.check(getattr(self, "d_model"))  # noqa: B009
        return self

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """Every stack of blocks, as it stands in the model."""
        return ()

    @property
    def input_vocab_size(self) -> int:
        """Ids that it can read; 0 for a model of images."""
        return getattr(self, "vocab_size", 0)

    @property
    def num_layers(self) -> int:
        """L, of all stacks together."""
        return sum(len(stack.layers) for stack in self.stacks)

    @property
    def follows_length(self) -> bool:
        """Whether rotations depend on the length of the text, so that a text must be read whole."""
        return any(block.mixer.keys_follow_length for stack in self.stacks for block in stack.layers)


class CausalSpec(ModelSpec):
    """Base of models that write text, token by token."""

    if TYPE_CHECKING:

        @property
        def vocab_size(self) -> int: ...


AnyModel = Annotated[ModelSpec, ByKind(ModelSpec, default="decoder")]
