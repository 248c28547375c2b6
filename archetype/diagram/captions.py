"""Captions next to boxes: the fields of a part that differ from the defaults."""

from collections.abc import Iterator
from typing import Any

from archetype.cost.registry import MixerCost
from archetype.roles.mixer import Mixer
from archetype.spec.base import Spec


def facts(part: Spec) -> list[str]:
    """Return the fields of a part that differ from the defaults, one per line."""
    return [line for name, value in part.dump().items() if name != "kind" and (line := _fact(name, value))]


def mixer_facts(cost: MixerCost, causal: bool) -> list[str]:
    """Return a mixer's direction and the size of its state per sequence."""
    mixer: Mixer = cost.part
    lines = ["causal" if causal else "bidirectional"] if mixer.sees_later else []
    if causal:
        # the difference is what grows with each token; the rest (of a convolution or recurrence) is constant
        first_state, second_state = cost.state(1), cost.state(2)
        state = (
            f"state: {second_state - first_state:,} numbers per token"
            if second_state > first_state
            else f"state: {first_state:,} numbers"
        )
        if second_state > first_state and (constant := first_state - (second_state - first_state)) > 0:
            state += f" and {constant:,} more"
        lines += [state] if first_state else []
    return lines


def _fact(name: str, value: Any) -> str:
    match value:
        case True:
            return name
        case False | None:
            return ""
        case dict():
            return f"{name}: {', '.join(words)}" if (words := list(_words(value))) else name
        case list() | tuple():
            return f"{name} {', '.join(str(item['kind'] if isinstance(item, dict) else item) for item in value)}"
    return f"{name} {_number(value)}"


def _words(data: dict[str, Any]) -> Iterator[str]:
    if "kind" in data:
        yield str(data["kind"])
    for name, value in data.items():
        if name != "kind" and value is not False:
            yield _fact(name, value) if not isinstance(value, dict) else f"{name} {' '.join(_words(value))}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 and value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
