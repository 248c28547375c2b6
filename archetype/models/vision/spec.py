"""Specification of image encoders."""

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
from archetype.spec.base import Flag, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


@part
class VisionEncoder(EndsWithNorm, ModelSpec):
    """Vision transformer: an image as a sequence of patches (Dosovitskiy 2020).

    The image vector is the output of a learned `class_token` before the patches, or the mean over the patches without
    one. `pooler` applies a linear layer and tanh to the image vector. DeiT adds a `distillation_token` after the class
    token.

    Attributes:
        image_size: height and width of an image in pixels.
        patch_size: height and width of a patch in pixels.
        num_channels: channels of an image.
        d_model: width of the hidden vectors, D.
        class_token: whether a learned class token precedes the patches.
        distillation_token: whether a distillation token, trained to match a teacher, follows the class token (Touvron
            2020).
        embedding: patch embedding.
        layers: list of blocks; {repeat: n, block: ...} repeats a block n times.
        residual: residual wiring of the layers.
        final_norm: norm after the last layer; write {kind: none} for a pre-norm stack without a final norm.
        pooler: whether the pooled vector passes through a linear layer and tanh.
        head: head that reads the vector of the image.
        initialization: initialization of the weights.
    """

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
        """Number of positions: patches and learned tokens."""
        return (self.image_size // self.patch_size) ** 2 + len(self.learned_tokens)

    @property
    def learned_tokens(self) -> tuple[str, ...]:
        """Names of the learned tokens before the patches, in order."""
        return tuple(name for name in ("class_token", "distillation_token") if getattr(self, name))

    @property
    def image_shape(self) -> tuple[int, int]:
        return self.num_channels, self.image_size

    def with_class_head(self, num_classes: int, of_tokens: bool = False) -> Self:
        head = ClassificationHead(num_classes=num_classes, dropout=self.embedding.dropout)
        return self.replace(head=head, pooler=False)

    @property
    def stacks(self) -> tuple[StackView, ...]:
        return (StackView.of(self),)

    @model_validator(mode="after")
    def _patches_divide(self) -> "VisionEncoder":
        if self.image_size % self.patch_size:
            cause = f"{self.patch_size} does not divide image_size {self.image_size}"
            invalid("patch_size", cause, "use a divisor")
        if self.distillation_token and not self.class_token:
            invalid("distillation_token", "needs a class token", "use class_token: true, or remove it")
        if self.embedding.width is not None:
            invalid("embedding.width", "patches are projected directly to d_model", "remove it")
        if self.embedding.num_token_types:
            invalid("embedding.num_token_types", "image patches have no types", "remove it")
        if self.embedding.extra_rows:
            invalid("embedding.extra_rows", "image patches have no token table", "remove it")
        return self
