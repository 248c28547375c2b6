"""Build a model from its specification, on any device."""

import os
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.initialization import initialize
from archetype.models.megabyte.module import MegaByte
from archetype.models.ngram.module import NGram
from archetype.models.spec import ModelSpec
from archetype.models.vision.module import VisionEncoder
from archetype.native.library import library
from archetype.nn.registry import module_class

Model = Decoder | NGram | MegaByte | Encoder | EncoderDecoder | VisionEncoder
GenerativeModel = CausalModel | EncoderDecoder


def build_on_meta(model: ModelSpec) -> Model:
    with torch.device("meta"):
        return cast(Model, module_class(model)(model))  # allocates no weights


def build(
    model: ModelSpec, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Model:
    """Build a randomly initialized model, equal for equal seed, device and data type.

    Raises:
        SpecError: the weights exceed this machine's memory.
    """
    device = torch.device(device)
    model_on_meta = build_on_meta(model).to(dtype)
    if device.type == "meta":
        return model_on_meta
    if device.type == "cpu":
        check_fits_memory(model_on_meta, model.name or "the specification")
        library()  # load or compile the kernels before any step is timed
    # `to_empty` would do the same with `torch.empty_like`, which imports sympy, 0.3 s at every start
    replaced: Callable[[Callable[[Tensor], Tensor]], Model] = model_on_meta._apply
    built = replaced(lambda x: torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device))
    initialize(built, model.initialization, model.num_layers, seed)
    return built


def check_fits_memory(model: nn.Module, name: str) -> None:
    """Raise an error before allocation if the weights of a model on the meta device exceed this machine's memory."""
    if not hasattr(os, "sysconf"):  # Windows does not provide it
        return
    needed = sum(parameter.nbytes for parameter in model.parameters())
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        cause = f"the weights take {needed / 2**30:,.1f} GiB, but this machine has {available / 2**30:,.1f} GiB"
        raise SpecError(name, cause, "use a smaller model, or device='meta' to count parameters")
