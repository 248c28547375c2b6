"""Weight rules applied: a file's tensors into a model, and a model's parameters into a file's tensors."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from archetype.errors import CheckpointError
from archetype.families.rules import Rule, check_all_used
from archetype.io.tensors import Tensors


def fill(
    model: nn.Module,
    tensors: Tensors,
    rules: list[Rule],
    ignored: Iterable[str] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> None:
    """Give every parameter of a model on the meta device its tensor.

    Where nothing is to be changed the parameter is a view of the file, so that loading reads nothing.

    Raises:
        CheckpointError: names the tensor that is missing, left over or of the wrong shape.
    """
    check_all_used(rules, tensors.names(), ignored)
    wanted = shapes(model)
    for rule in rules:
        _check_shape(rule, tensors.shape(rule.theirs), [rule.part(wanted[name]) for name in rule.ours])
    dtype = dtype or tensors.mapped(rules[0].theirs).dtype  # a file of mixed types becomes its first tensor's
    buffers = {name for name, _ in model.named_buffers()}
    state: dict[str, Tensor] = {}
    for rule in rules:
        own = dtype
        if buffers.intersection(rule.ours):  # statistics and corrections are no weights, and lose no digit
            own = torch.promote_types(tensors.mapped(rule.theirs).dtype, dtype)
        found = _parameters(rule, tensors, [rule.part(wanted[name]) for name in rule.ours], own, device)
        if rule.expert is None:
            state |= found
            continue
        for name, tensor in found.items():
            if name not in state:
                state[name] = torch.empty(wanted[name], dtype=dtype, device=device)
            state[name][rule.expert] = tensor
    model.load_state_dict(state, strict=True, assign=True)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a model, by name."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def exported(model: nn.Module, rules: list[Rule]) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors, one by one."""
    kept = model.state_dict()
    for rule in rules:
        joined = [kept[name] if rule.expert is None else kept[name][rule.expert] for name in rule.ours]
        tensor = joined[0] if len(joined) == 1 else _joined(joined, rule.heads)
        tensor = tensor if rule.shape is None else tensor.reshape(rule.shape)
        yield rule.theirs, tensor.t().contiguous() if rule.transposed else tensor


def exported_bytes(model: nn.Module, rules: list[Rule]) -> dict[str, int]:
    """The size of each of the file's tensors."""
    kept = model.state_dict()
    return {
        rule.theirs: sum(
            kept[name].nbytes if rule.expert is None else kept[name][rule.expert].nbytes for name in rule.ours
        )
        for rule in rules
    }


def _parameters(
    rule: Rule, tensors: Tensors, wanted: list[tuple[int, ...]], dtype: torch.dtype, device: torch.device | None
) -> dict[str, Tensor]:
    """The parameters that one tensor holds."""
    if len(rule.ours) == 1 and not rule.transposed:
        whole = tensors.mapped(rule.theirs)
        if whole.dtype == dtype and device in (None, torch.device("cpu")):
            return {rule.ours[0]: whole.view(wanted[0])}
        del whole
    with tensors.copied(rule.theirs) as tensor:
        turned = tensor.t() if rule.transposed else tensor.view(_joint(wanted))
        sizes = [shape[0] // rule.heads for shape in wanted]
        pieces = turned.unflatten(0, (rule.heads, -1)).split(sizes, dim=1)
        return {
            name: torch.empty(piece.shape, dtype=dtype, device=device).copy_(piece).flatten(0, 1)
            for name, piece in zip(rule.ours, pieces, strict=True)
        }


def _joint(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of tensors that are joined along their rows."""
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _joined(tensors: list[Tensor], heads: int) -> Tensor:
    """Along their rows, head by head."""
    return torch.cat([tensor.unflatten(0, (heads, -1)) for tensor in tensors], dim=1).flatten(0, 1)


def _check_shape(rule: Rule, found: tuple[int, ...], wanted: list[tuple[int, ...]]) -> None:
    joined = _joint(wanted)
    needed = rule.shape or (joined[::-1] if rule.transposed else joined)
    if found != needed:
        cause = f"has shape {list(found)} where the model needs {list(needed)}"
        raise CheckpointError(rule.theirs, cause, "does config.json describe this checkpoint?")
