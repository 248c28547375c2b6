"""Initial distributions of weights, with their sources.

Each tensor is drawn from a generator seeded by the model's seed and the tensor's name: adding a part to an architecture
does not change the initial weights of the others. A module names tensors that begin as a constant in `initial_values`.
One with special distributions (a recurrence, a state space model) draws them in `init_tensor(name, tensor, generator)`
and returns True for tensors that it has drawn.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, assert_never

import torch
from torch import Tensor, nn

from archetype.models.initialization_spec import (
    GPT2Initialization,
    Initialization,
    MuPInitialization,
    NormalInitialization,
    XavierInitialization,
)
from archetype.nn.random import generator_for

# Weights whose products are added to the residual stream.
RESIDUAL_OUTPUTS = (
    "mixer.o.weight",
    "mixer.out_proj.weight",
    "cross.o.weight",
    "feedforward.down.weight",
    "feedforward.experts.down",
    "feedforward.shared.down.weight",
)


class OwnTensor(NamedTuple):
    """A parameter or buffer with its module and names."""

    module: nn.Module
    own_name: str
    name: str
    tensor: Tensor


def own_tensors(model: nn.Module) -> Iterator[OwnTensor]:
    for path, module in model.named_modules():
        tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        for own_name, tensor in tensors.items():
            yield OwnTensor(module, own_name, f"{path}.{own_name}" if path else own_name, tensor)


@torch.no_grad()
def initialize(model: nn.Module, scheme: Initialization, num_layers: int, seed: int) -> None:
    """Draw every tensor of `model` in place: norms 1, biases 0, matrices by the scheme."""
    for tensor in own_tensors(model):
        initialize_tensor(tensor, scheme, num_layers, seed)


def initialize_tensor(owned: OwnTensor, scheme: Initialization, num_layers: int, seed: int) -> None:
    module, own_name, name, tensor = owned
    constants: Any = getattr(module, "initial_values", {})
    if own_name in constants:
        tensor.fill_(constants[own_name])
        return
    generator, own_way = generator_for(seed, name, tensor.device), getattr(module, "init_tensor", None)
    if callable(own_way) and own_way(own_name, tensor, generator):
        return
    if name.endswith("bias"):
        tensor.zero_()
    elif tensor.dim() == 1:  # the weight of a norm
        tensor.fill_(1.0)
    else:
        init_weight(tensor, name, scheme, num_layers, generator)


def init_weight(
    weight: Tensor, name: str, scheme: Initialization, num_layers: int, generator: torch.Generator | None
) -> None:
    match scheme:
        case NormalInitialization(std=std):
            weight.normal_(0.0, std, generator=generator)
        case GPT2Initialization(std=std):
            # Radford 2019, section 2.3: 1/sqrt(N) for the N = 2 L contents that add to the residual stream
            shrink = 1 / math.sqrt(2 * num_layers) if name.endswith(RESIDUAL_OUTPUTS) else 1.0
            weight.normal_(0.0, std * shrink, generator=generator)
        case XavierInitialization():
            # variance 1 / d_model, whatever the vocabulary (Vaswani 2017)
            if "embedding." in name:
                weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)
            else:
                bound = math.sqrt(6 / (weight.shape[-2] + weight.shape[-1]))  # Glorot 2010, equation 16
                weight.uniform_(-bound, bound, generator=generator)
        case MuPInitialization(std=std, base_width=base_width):
            is_hidden = "embedding." not in name and not name.startswith(("lm_head", "classifier", "pooler"))
            shrink = math.sqrt(base_width / weight.shape[-1]) if is_hidden else 1.0  # Yang 2021, table 8
            weight.normal_(0.0, std * shrink, generator=generator)
        case _:
            assert_never(scheme)
