"""The vision encoder: an image as a sequence of patches."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.models.initialization import init_weight
from archetype.models.output import BaseModel, Classifier, Output
from archetype.models.stack.module import Stack
from archetype.models.vision import spec
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.registry import build_norm, build_position, module_for
from archetype.parts.head.module import Pooler
from archetype.parts.norm.module import normalize_stream
from archetype.weights.linear import Linear


class PatchEmbedding(nn.Module):
    """dropout(norm(scale * (learned tokens, projected patches) + position vectors)) (Dosovitskiy 2020, equation 1)."""

    def __init__(self, encoder: spec.VisionEncoder) -> None:
        super().__init__()
        self.spec = encoder
        embedding, d_model = encoder.embedding, encoder.d_model
        self.patch = Linear(encoder.num_channels * encoder.patch_size**2, d_model)
        for name in encoder.learned_tokens:
            self.register_parameter(name, nn.Parameter(torch.empty(d_model)))
        self.position = build_position(embedding.position, encoder.context_length, d_model)
        self.norm = build_norm(embedding.norm, d_model)
        self.dropout = embedding.dropout

    def forward(self, images: Float[Tensor, "B channels height width"]) -> Vectors:
        """Return the vectors of learned tokens, if any, and of the patches, row by row."""
        dtype = self.patch.weight.dtype  # sums keep the weights' data type under autocast
        x = self.patch(patches(images.to(dtype), self.spec.patch_size)).to(dtype)  # (B, patches, D)
        learned = [getattr(self, name).expand(x.shape[0], 1, -1) for name in self.spec.learned_tokens]  # (B, 1, D) each
        x = torch.cat((*learned, x), dim=1) if learned else x  # (B, T, D)
        scale = self.spec.embedding.scale
        x = x if scale == 1.0 else x * scale
        positions = torch.arange(x.shape[1], device=x.device)[None]  # (1, T)
        x = normalize_stream(self.norm, x + self.position(positions).to(dtype))
        return dropout(x, self.dropout, self.training)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # drawn like a table with one row
        init_weight(tensor[None], f"embedding.{name}", self.spec.initialization, self.spec.num_layers, generator)
        return True


def patches(images: Float[Tensor, "B channels height width"], size: int) -> Float[Tensor, "B T pixels"]:
    """Cut images into size x size patches, row by row. A patch has its pixels in order of channel, row and column."""
    # (B, channels, rows, size, columns, size) to (B, rows, columns, channels, size, size)
    grid: Tensor = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


@module_for(spec.VisionEncoder)
class VisionEncoder(Stack, BaseModel):
    """A bidirectional stack of blocks over the patches of an image (Dosovitskiy 2020)."""

    def __init__(self, encoder: spec.VisionEncoder) -> None:
        super().__init__(encoder.stacks[0])
        self.spec = encoder
        self.embedding = PatchEmbedding(encoder)
        self.pooler = Pooler(encoder.d_model) if encoder.pooler else None
        self.add_head(encoder.head, 0, encoder.d_model)

    def pooled(self, hidden: Vectors) -> Float[Tensor, "B D"]:
        """Return the vector of each image: the class token's vector or the mean, after the pooler, if any."""
        x = hidden[:, 0] if self.spec.class_token else hidden.mean(dim=1)
        return x if self.pooler is None else self.pooler(x)

    def class_logits(self, hidden: Vectors, context: ForwardContext, classifier: Classifier) -> Float[Tensor, "B Y"]:
        return classifier(self.pooled(hidden))

    def forward(self, images: Float[Tensor, "B channels height width"]) -> Output:
        """Return the hidden vectors of learned tokens and patches, (B, T, D), and the head's logits, (B, Y).

        Raises:
            SpecError: the images have another size.
        """
        check_image_size(self.spec, images)
        x = self.embedding(images)  # (B, T, D)
        context = self.context(x)
        x = self.final_norm(self.run(x, context), context)
        logits = None if self.classifier is None else self.class_logits(x, context, self.classifier)
        return Output(logits, aux_loss=context.aux_loss, hidden=x)


def check_image_size(encoder: spec.VisionEncoder, images: Float[Tensor, "B channels height width"]) -> None:
    expected = encoder.num_channels, encoder.image_size, encoder.image_size
    if images.shape[1:] != expected:
        size, needed = (" x ".join(map(str, shape)) for shape in (images.shape[1:], expected))
        raise SpecError("images", f"have shape {size}, but the model needs {needed}", "resize or convert them")
