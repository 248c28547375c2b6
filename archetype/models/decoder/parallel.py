"""Pipeline parallelism of decoders: each process computes some of the layers."""

from torch import Tensor, nn

from archetype.models.decoder.module import Decoder
from archetype.nn.context import ForwardContext
from archetype.roles.parallel import Plans, stage_layers
from archetype.spec.registry import provides


class Stage(nn.Module):
    """The layers of one pipeline stage. The first stage has the embedding, the last has the final norm and the head."""

    def __init__(self, model: Decoder, number: int, num_stages: int) -> None:
        super().__init__()
        self.is_first, self.is_last = number == 0, number == num_stages - 1
        self.model, self.own = model, stage_layers(number, num_stages, len(model.blocks))
        # replaced rather than deleted, so that the remaining parameters keep their names
        for index in set(range(len(model.blocks))) - set(self.own):  # layers that share weights are in the same stage
            model.blocks[index] = nn.Identity()
        if not self.is_first:
            model.embedding = nn.Identity()
        if not self.is_last:
            model.final_norm = model.lm_head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the input of the next stage, (B, T, D), or logits in the last stage, from tokens or vectors."""
        context = ForwardContext.of(x)
        if self.is_first:
            x = self.model.embedding(x, context)
        x = self.model.run(x, context, layers=self.own)
        if self.is_last and self.model.lm_head is not None:
            x = self.model.lm_head(self.model.final_norm(x, context), self.model.lm_head.weight)
        return x


@provides("parallel", Decoder)
class DecoderPlans(Plans[Decoder]):
    """Pipeline parallelism plans for decoders."""

    def stage(self, index: int, num_stages: int) -> Stage:
        # layers are assigned in order
        return Stage(self.module, index, num_stages)
