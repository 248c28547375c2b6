"""Encoders of pictures."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import ModelSpec
from archetype.models.stack.layers import Layers
from archetype.models.stack.spec import EndsWithNorm, StackView
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.spec import Learned
from archetype.roles.embedding import ForPatches
from archetype.roles.head import VisionHead
from archetype.roles.norm import AnyNorm
from archetype.roles.residual import AnyResidual, ResidualSum
from archetype.spec.base import Flag, Size, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

__all__ = ["VisionEncoder"]


@part
class VisionEncoder(EndsWithNorm, ModelSpec):
    """A picture as a text of patches (Dosovitskiy 2020).

    A `class_token` before the patches stands for the picture; without it the mean of the patches does. `pooler` adds a
    layer with tanh on it. DeiT has a `distillation_token` beside the class token.

    Attributes:
        image_size: height and width of a picture, in pixels.
        patch_size: height and width of a patch, in pixels.
        num_channels: of a picture.
        d_model: features of each vector, D.
        class_token: whether a learned vector stands before the patches.
        distillation_token: whether another follows it, from which a teacher's answers were learned (Touvron 2020).
        embedding: how patches become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        residual: how what the contents of its layers give is carried on.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        pooler: a layer with tanh on the pooled vector.
        head: what is answered for the picture.
        initialization: how weights are drawn.
    """

    renamed: ClassVar[dict[str, str]] = {"channels": "num_channels"}
    letters: ClassVar[Mapping[str, str]] = {"T": "positions of an image", "J": "pixels of a patch's side"}
    reads_images: ClassVar[bool] = True
    can_classify: ClassVar[bool] = True
    kind: Literal["vision_encoder"] = "vision_encoder"
    image_size: Size
    patch_size: Size
    num_channels: Size = 3
    d_model: Width
    class_token: Flag = True
    distillation_token: Flag = False
    embedding: Annotated[Embedding, ForPatches] = Embedding(position=Learned())
    layers: Layers
    residual: AnyResidual = ResidualSum()
    final_norm: AnyNorm = NoNorm()
    pooler: Flag = False
    head: VisionHead
    initialization: Initialization = GPT2Initialization()

    @property
    def context_length(self) -> int:
        """Positions: the patches, and the learned vectors before them."""
        return (self.image_size // self.patch_size) ** 2 + len(self.learned_tokens)

    @property
    def learned_tokens(self) -> tuple[str, ...]:
        """Names of the learned vectors before the patches, in their order."""
        return tuple(name for name in ("class_token", "distillation_token") if getattr(self, name))

    @property
    def image_shape(self) -> tuple[int, int]:
        """Channels, and pixels of a side."""
        return self.num_channels, self.image_size

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        """A head of the pooled vector."""
        head = ClassificationHead(num_classes=num_classes, dropout=self.embedding.dropout)
        return self.replace(head=head, pooler=False)

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (StackView("", self.layers, self.final_norm, self.d_model, causal=False, residual=self.residual),)

    @model_validator(mode="after")
    def _patches_divide(self) -> "VisionEncoder":
        if self.image_size % self.patch_size:
            cause = f"{self.patch_size} does not divide image_size {self.image_size}"
            invalid("patch_size", cause, "use a divisor")
        if self.distillation_token and not self.class_token:
            invalid("distillation_token", "it stands behind a class token", "use class_token: true, or leave it out")
        if self.embedding.width is not None:
            invalid("embedding.width", "patches are projected to d_model at once", "leave it out")
        if self.embedding.num_token_types:
            invalid("embedding.num_token_types", "patches of a picture are all of one type", "leave it out")
        return self
