"""Cost of image encoders."""

from archetype.cost.formula import Counts, prefixed, symbol
from archetype.cost.registry import cost_of, linear
from archetype.cost.work import TrainingWork, Work
from archetype.models.encoder.cost import EncoderCost
from archetype.models.vision import spec
from archetype.parts.embedding.cost import EmbeddingCost


@cost_of(spec.VisionEncoder)
class VisionEncoderCost(EncoderCost):
    """Cost of an image encoder, for which all images have the same number of positions."""

    reads = "images"
    embedding: EmbeddingCost

    def __init__(self, model: spec.VisionEncoder) -> None:
        super().__init__(model)
        self.max_length, self.learned_tokens = model.context_length, model.learned_tokens
        side = symbol("J", model.patch_size, model)
        self.patch = model.num_channels * side * side  # numbers per patch

    def embedding_parameters(self) -> Counts:
        patch = {"patch": linear(self.patch, self.d, bias=True), **dict.fromkeys(self.learned_tokens, self.d)}
        embedding = self.embedding.parameters()
        return prefixed("embedding.", patch | {name: embedding[name] for name in ("position", "norm")})

    def flops(self, work: Work) -> Counts:
        # learned tokens are not projected
        patches = work.rows * (work.length + -1 * len(self.learned_tokens))
        return {"embedding.patch": 2 * patches * self.patch * self.d} | super().flops(work)

    def saved_activations(self, work: TrainingWork) -> int:
        return work.input_bytes(self.patch.value) + self.embedding.norm.saved_activations(work.tokens)
