"""The role of each parameter for the optimizer, declared by its module or inferred from its class and name."""

from collections.abc import Iterator
from typing import Literal, get_args

from torch import Tensor, nn

Role = Literal["embedding", "norm", "bias", "hidden", "head", "vector"]
ROLES = get_args(Role)
HEADS, EMBEDDINGS = ("lm_head", "classifier", "pooler", "sentence_head"), ("embedding.", "position_bias")


def roles_of(model: nn.Module) -> dict[str, Role]:
    """Return {parameter name: role}.

    A module can declare roles in `parameter_roles`. Otherwise the matrices of linear layers, experts and recurrences
    outside embedding and head are `hidden`; all other parameters, such as convolution kernels, are `vector`.
    """
    return {
        name: _declared(module, short_name) or _by_name(name, module, tensor)
        for name, module, short_name, tensor in _own(model)
    }


def decayed_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters subject to weight decay: matrices and kernels.

    Biases, norm gains and parameters that a module declares as `vector` are exempt, whatever their number of
    dimensions: decay towards 0 does not shrink a rate such as Mamba's A_log, but changes it to another rate.
    """
    return {
        name
        for name, module, short_name, tensor in _own(model)
        if tensor.dim() >= 2
        and (_declared(module, short_name) or _by_name(name, module, tensor)) not in ("norm", "bias")
        and _declared(module, short_name) != "vector"
    }


def _own(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    # full name, module, name in the module and tensor, once for each tensor
    ids: set[int] = set()
    for path, module in model.named_modules():
        for short_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in ids:
                ids.add(id(parameter))
                yield f"{path}.{short_name}" if path else short_name, module, short_name, parameter


def _declared(module: nn.Module, short_name: str) -> Role | None:
    roles: dict[str, Role] = getattr(module, "parameter_roles", {})
    return roles.get(short_name)


def _by_name(name: str, module: nn.Module, parameter: Tensor) -> Role:
    *above, own_name = name.split(".")
    if above and "norm" in above[-1]:
        return "norm"
    if any(part in name for part in EMBEDDINGS):
        return "embedding"
    if own_name.startswith("bias") or own_name.endswith("bias"):
        return "bias"
    if name.startswith(HEADS):
        return "head"
    is_matrix = isinstance(module, nn.Linear | nn.RNNBase) or "experts" in above
    return "hidden" if is_matrix and parameter.dim() >= 2 else "vector"
