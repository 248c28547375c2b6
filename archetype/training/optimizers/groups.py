"""Parameter groups with separate learning rates and weight decays, selected by role or name pattern."""

from typing import Any, NamedTuple

from torch import nn

from archetype.errors import SpecError
from archetype.nn.parameter_names import names_matching
from archetype.nn.parameter_roles import ROLES, Role, decayed_parameters, roles_of
from archetype.spec.base import NotNegative, Positive, Spec


class ParameterGroup(Spec):
    """Parameters with a separate learning rate or weight decay.

    `parameters` is a role or a name pattern such as blocks.*.q.weight. The roles are embedding, norm, bias, hidden
    (matrices of linear maps), head, and vector (all others). If several groups match a parameter, the last applies.

    Attributes:
        parameters: a role or a name pattern.
        learning_rate_ratio: factor on the learning rate of the schedule.
        weight_decay: relative to the learning rate (absent: the optimizer's for matrices, 0 for the rest).
    """

    parameters: str
    learning_rate_ratio: Positive = 1.0
    weight_decay: NotNegative | None = None


def width_ratio(model: nn.Module) -> float:
    """Return muP's base width divided by the model's width; 1 without muP."""
    model_spec = getattr(model, "spec", None)
    base_width: int | None = getattr(getattr(model_spec, "initialization", None), "base_width", None)
    if base_width is None:
        return 1.0
    width = getattr(model_spec, "d_model", None)
    if not isinstance(width, int):
        cause = f"mup needs one d_model, which a model of kind {getattr(model_spec, 'kind', '')} does not have"
        raise SpecError("initialization", cause, "use normal, gpt2 or xavier")
    return base_width / width


class Grouped(NamedTuple):
    """A trainable parameter with its optimizer settings."""

    name: str
    parameter: nn.Parameter
    role: Role
    learning_rate_ratio: float
    weight_decay: float


def group_parameters(model: nn.Module, groups: tuple[ParameterGroup, ...], weight_decay: float) -> list[Grouped]:
    """Return all trainable parameters with their settings. By default, only matrices have weight decay."""
    roles, decayed, grouped, members = roles_of(model), decayed_parameters(model), [], []
    for index, group in enumerate(groups):
        field, pattern = f"optimizer.groups[{index}].parameters", group.parameters
        if pattern in ROLES:
            names = {name for name, role in roles.items() if role == pattern}
        else:
            names = names_matching(model, [pattern], field)
        if not any(model.get_parameter(name).requires_grad for name in names):
            raise SpecError(field, f"{pattern!r} matches no trainable parameter", f"use one of {', '.join(ROLES)}")
        members.append(names)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            ratio, decay = 1.0, weight_decay if name in decayed else 0.0
            for group, names in zip(groups, members, strict=True):  # the last match decides
                if name in names:
                    ratio = group.learning_rate_ratio
                    decay = decay if group.weight_decay is None else group.weight_decay
            grouped.append(Grouped(name, parameter, roles[name], ratio, decay))
    return grouped


def torch_groups(grouped: list[Grouped]) -> list[dict[str, Any]]:
    # one group per combination: an optimizer updates a group's parameters together
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for each in grouped:
        groups.setdefault((each.learning_rate_ratio, each.weight_decay), []).append(each.parameter)
    return [
        {"params": parameters, "learning_rate_ratio": ratio, "weight_decay": decay}
        for (ratio, decay), parameters in groups.items()
    ]
