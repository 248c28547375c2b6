"""Switch Transformers (Fedus 2021): T5 with experts in every second layer, and one expert per token."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.t5 import t5
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.stack.spec import Stack
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.router.spec import SoftmaxRouter


def switch(*, num_experts: int, balance_loss: float = 0.01, **design: Any) -> EncoderDecoder:
    """Build a Switch encoder-decoder. `design` takes the arguments of `t5`."""
    dense = t5(**design)

    def with_experts(stack: Stack) -> Stack:
        sizes = {"num_experts": num_experts, "experts_per_token": 1}
        settings = {"router": SoftmaxRouter(), "balance_loss": balance_loss}
        # the first layer, which has the table of relative positions, stays dense: experts are in layers 1, 3, ...
        sparse = stack.layers[1].replace(
            feedforward=MixtureOfExperts(expert=stack.layers[1].feedforward, **sizes, **settings)
        )
        return stack.replace(layers=tuple(sparse if layer % 2 else block for layer, block in enumerate(stack.layers)))

    return dense.replace(encoder=with_experts(dense.encoder), decoder=with_experts(dense.decoder))


FAMILY = Family("switch", presets("Fedus 2021, table 9; google/switch-base-* config.json", switch, {
    "switch-base-8": dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072, num_experts=8),
    "switch-base-128": dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072, num_experts=128),
}))
