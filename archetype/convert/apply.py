"""Apply weight rules: load a checkpoint's tensors into a model, and export a model's parameters as tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from math import prod

import torch
from torch import Tensor, nn

from archetype.errors import CheckpointError
from archetype.families.rules import Rule, check_all_used
from archetype.io.tensors import Tensors, empty
from archetype.native.library import library

Shape = tuple[int, ...]


def load_tensors(
    model: nn.Module,
    tensors: Tensors,
    rules: list[Rule],
    ignored: Iterable[str] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> None:
    """Load a checkpoint into a model on the meta device.

    Tensors that need no conversion become views of the mapped file, so that loading them reads no data.

    Args:
        rules: rules returned by `for_model`.
        ignored: patterns of tensor names that no rule uses.
        dtype: dtype of the weights (default: dtype of the first tensor that a rule names).
        device: device of the weights (default: CPU).

    Raises:
        CheckpointError: a tensor is missing, unused or of the wrong shape.
    """
    # names and shapes before any data is read: a wrong file then fails at once
    check_all_used(rules, tensors.names(), ignored)
    shapes = shapes_of(model)
    for rule in rules:
        _check_shape(rule, tensors.shape(rule.hf), [rule.shape_in(shapes[name]) for name in rule.params])
    buffers = dict(model.named_buffers())
    integer_buffers = {name for name, buffer in buffers.items() if not buffer.is_floating_point()}
    # integer buffers (token ids, counters) are never converted
    weights = [rule for rule in rules if integer_buffers.isdisjoint(rule.params)]
    dtype = dtype or tensors.dtype(weights[0].hf)  # a file may mix types; its first tensor decides
    state = {rule.params[0]: _integers(rule, tensors, device) for rule in rules if rule not in weights}
    for rule in weights:
        rule_dtype = dtype
        if not buffers.keys().isdisjoint(rule.params):  # statistics and router corrections keep their precision
            rule_dtype = torch.promote_types(tensors.dtype(rule.hf), dtype)
        params = _split(rule, tensors, [rule.shape_in(shapes[name]) for name in rule.params], rule_dtype, device)
        if rule.share is None:
            state |= params
            continue
        for name, tensor in params.items():  # the file stores each expert separately, the model stacks them (E, ...)
            # one parameter for all experts, filled one expert at a time, so that there is no second copy of the stack
            if name not in state:
                state[name] = empty(shapes[name], dtype, device)
            state[name][rule.share] = tensor
    # assigned, not copied: views of the mapped file stay views
    model.load_state_dict(state, strict=True, assign=True)
    if device is None or device.type == "cpu":
        library()  # compile or open the native library now, not in the first timed step


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    """Return the shape of every tensor in a model's state, by name."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def published_shapes(model: nn.Module) -> dict[str, Shape]:
    """Return the shapes of all tensors outside the sentence head, which is stored in other files."""
    return {name: shape for name, shape in shapes_of(model).items() if not name.startswith("sentence_head.")}


def export_tensors(
    model: nn.Module, rules: list[Rule], state: dict[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the file's tensors by name, computed from `state` (default: the model's state)."""
    state = model.state_dict() if state is None else state
    for rule in rules:
        params = _params(rule, state)
        # a fused tensor: GPT-2's c_attn has q, k and v one after another, GPT-NeoX's query_key_value head by head
        tensor = params[0] if len(params) == 1 else _join(params, rule.heads)
        tensor = tensor.reshape(_shape_in_file(rule, [tuple(param.shape) for param in params]))
        tensor = _halves_swapped(tensor) if rule.swapped else tensor
        # GPT-2's Conv1D stores matrices as (inputs, outputs); safetensors only stores contiguous tensors
        tensor = tensor.transpose(-1, -2).contiguous() if rule.transposed else tensor
        if rule.padding:
            tensor = torch.cat((tensor, tensor.new_zeros(rule.padding, *tensor.shape[1:])))
        yield rule.hf, tensor.flatten(0, 1) if rule.stacked else tensor


def export_sizes(model: nn.Module, rules: list[Rule]) -> dict[str, int]:
    """Return the size in bytes of each tensor of the file."""
    state = model.state_dict()
    return {rule.hf: sum(tensor.nbytes for tensor in _params(rule, state)) for rule in rules}


def shares(
    rules: Iterable[Rule], shapes: Mapping[str, Shape], size: Callable[[str], int]
) -> Iterator[tuple[str, int, Fraction]]:
    """Yield each parameter's name, its number of weights, and its share of the bytes of a file tensor.

    Args:
        size: returns the size in bytes of a file tensor.
    """
    for rule in rules:
        counts = {name: prod(rule.shape_in(shapes[name])) for name in rule.params}
        total, nbytes = sum(counts.values()), size(rule.hf)
        yield from ((name, count, Fraction(nbytes * count, total)) for name, count in counts.items())


def _params(rule: Rule, state: dict[str, Tensor]) -> list[Tensor]:
    return [state[name] if rule.share is None else state[name][rule.share] for name in rule.params]


def _split(
    rule: Rule, tensors: Tensors, shapes: list[Shape], dtype: torch.dtype, device: torch.device | None
) -> dict[str, Tensor]:
    as_it_is = len(rule.params) == 1 and not rule.transposed and not rule.swapped and tensors.dtype(rule.hf) == dtype
    if as_it_is and not rule.padding and device in (None, torch.device("cpu")):
        return {rule.params[0]: tensors.mapped(rule.hf).view(shapes[0])}
    with tensors.copied(rule.hf) as stored:
        tensor = _without_padding(rule, stored) if rule.padding else stored
        # DBRX stores the matrices of all experts as one, (E rows, columns)
        matrix = tensor.unflatten(0, (shapes[0][0], -1)) if rule.stacked else tensor
        matrix = matrix.transpose(-1, -2) if rule.transposed else matrix
        matrix = _halves_swapped(matrix) if rule.swapped else matrix
        if rule.heads == 1 and rule.shape is None:  # split into views: only `copy_` below copies
            pieces = (matrix,) if len(shapes) == 1 else matrix.split([shape[0] for shape in shapes])
        else:  # each head's rows of all parameters are stored together
            joined = matrix.reshape(rule.heads, -1)  # (H, sum of the parameters' sizes / H)
            pieces = joined.split([prod(shape) // rule.heads for shape in shapes], dim=1)
        return {
            name: empty(tuple(piece.shape), dtype, device).copy_(piece).view(shape)
            for name, piece, shape in zip(rule.params, pieces, shapes, strict=True)
        }


def _without_padding(rule: Rule, tensor: Tensor) -> Tensor:
    if not rule.unused and tensor[-rule.padding :].any():
        cause = f"has other numbers than zero in its last {rule.padding} rows, which the model does not have"
        raise CheckpointError(rule.hf, cause, "does config.json describe this checkpoint?")
    return tensor[: -rule.padding]


def _halves_swapped(tensor: Tensor) -> Tensor:
    # a projection of two concatenated vectors whose order differs; the swap is its own inverse
    return tensor.roll(tensor.shape[-1] // 2, dims=-1)


def _integers(rule: Rule, tensors: Tensors, device: torch.device | None) -> Tensor:
    # token ids and counters: a conversion from another type would hide a wrong file
    stored = tensors.stored(rule.hf)
    if stored.dtype != torch.int64:
        cause = f"is stored as {str(stored.dtype).removeprefix('torch.')} instead of int64"
        raise CheckpointError(rule.hf, cause, "does config.json describe this checkpoint?")
    return stored.to(device, copy=True)


def file_shape(rule: Rule, shapes: list[Shape]) -> Shape:
    """Return the shape of the file tensor that stores parameters of the given shapes."""
    shape = _shape_in_file(rule, shapes)
    shape = (*shape[:-2], shape[-1], shape[-2]) if rule.transposed else shape
    shape = (shape[0] * shape[1], *shape[2:]) if rule.stacked else shape
    return (shape[0] + rule.padding, *shape[1:]) if rule.padding else shape


def _shape_in_file(rule: Rule, shapes: list[Shape]) -> Shape:
    # before transposition, if the rule asks for one
    if rule.shape is None:
        # a single tensor may be a number
        return shapes[0] if len(shapes) == 1 else (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return (*rule.shape[:-2], rule.shape[-1], rule.shape[-2]) if rule.transposed else rule.shape


def _join(tensors: list[Tensor], heads: int) -> Tensor:
    # (heads, rows of a head * columns) of each parameter, so that the rows of a head end up side by side
    return torch.cat([tensor.reshape(heads, -1) for tensor in tensors], dim=1)


def _check_shape(rule: Rule, shape: Shape, param_shapes: list[Shape]) -> None:
    needed = file_shape(rule, param_shapes)
    if shape != needed:
        cause = f"has shape {list(shape)} where the model needs {list(needed)}"
        raise CheckpointError(rule.hf, cause, "does config.json describe this checkpoint?")
