"""Widen a model so that the learning rate of a narrow model transfers to it (muP)."""

from typing import Any

from archetype.errors import SpecError
from archetype.models.block.spec import Block
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import MuPInitialization

__all__ = ["widen"]


def widen(model: Decoder, factor: int, std: float = 0.02) -> Decoder:
    """Return a decoder `factor` times as wide in maximal update parametrization (Yang 2021).

    The best learning rate is nearly independent of the factor. Logits are scaled by 1 / factor. There are more heads of
    the same size, whose scores keep their scale.

    Args:
        model: a decoder with attention and MLPs, at the base width.
        factor: factor of d_model, d_ff and the numbers of heads.
        std: standard deviation of hidden matrices at the base width, and of all other matrices at any width.

    Raises:
        SpecError: a layer has parts other than attention and MLPs.
    """
    head: Any = model.head
    if not head.predicts_next:
        raise SpecError("head", "only language model heads can be widened", "write the wider specification yourself")
    layers = tuple(_wider(block, factor, f"layers[{index}]") for index, block in enumerate(model.layers))
    scheme = MuPInitialization(std=std, base_width=model.d_model)
    head = head.replace(scale=head.scale / factor)
    return model.replace(d_model=factor * model.d_model, layers=layers, head=head, initialization=scheme)


def _wider(block: Block, factor: int, place: str) -> Block:
    mixer, feedforward = block.mixer.widened(factor), block.feedforward.widened(factor)
    if mixer is None or feedforward is None:
        raise SpecError(place, "only attention and MLPs can be widened", "write the wider specification yourself")
    return block.replace(mixer=mixer, feedforward=feedforward)
