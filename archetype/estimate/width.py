"""A model made wider so that the learning rate of a narrow one holds (muP)."""

from archetype.errors import SpecError
from archetype.models.block.spec import Block
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import MuPInitialization
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP, GatedMLP, NoFeedForward
from archetype.parts.head.spec import LanguageModelHead

__all__ = ["widen"]


def widen(model: Decoder, factor: int, std: float = 0.02) -> Decoder:
    """A decoder that is `factor` times as wide, in maximal update parametrization (Yang 2021).

    The learning rate that is best with a factor of 1 is about the best with any other. Logits are scaled by 1 / factor;
    there are more heads of the same width, whose scores keep their scale.

    Args:
        model: of attention and MLPs, at the base width.
        factor: of d_model, d_ff and the numbers of heads.
        std: standard deviation of hidden matrices at the base width, and of all others at any.

    Raises:
        SpecError: a layer has other parts.
    """
    if not isinstance(model.head, LanguageModelHead):
        raise SpecError("head", "only a head of tokens is widened", "write the wider specification yourself")
    layers = tuple(_wider(block, factor, f"layers[{index}]") for index, block in enumerate(model.layers))
    scheme = MuPInitialization(std=std, base_width=model.d_model)
    head = model.head.replace(scale=model.head.scale / factor)
    return model.replace(d_model=factor * model.d_model, layers=layers, head=head, initialization=scheme)


def _wider(block: Block, factor: int, place: str) -> Block:
    mixer, feedforward = block.mixer, block.feedforward
    if not isinstance(mixer, Attention) or not isinstance(feedforward, MLP | GatedMLP | NoFeedForward):
        raise SpecError(place, "only attention and MLPs are widened", "write the wider specification yourself")
    heads = {"num_heads": factor * mixer.num_heads}
    if mixer.num_kv_heads is not None:
        heads["num_kv_heads"] = factor * mixer.num_kv_heads
    if not isinstance(feedforward, NoFeedForward) and isinstance(feedforward.d_ff, int):
        feedforward = feedforward.replace(d_ff=factor * feedforward.d_ff)  # eight thirds follow d_model themselves
    return block.replace(mixer=mixer.replace(**heads), feedforward=feedforward)
