"""Captions beside the boxes of a diagram: the name of a part, and its fields that differ from the usual."""

from collections.abc import Iterator
from typing import Any

from archetype.cost.registry import MixerCost
from archetype.parts.attention.spec import Attention
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.roles.mixer import Mixer
from archetype.spec.base import Spec
from archetype.spec.kinds import Part

TITLES = {
    "attention": "Attention", "latent": "Latent attention", "rnn": "RNN", "lstm": "LSTM", "gru": "GRU",
    "mamba": "Mamba", "mamba2": "Mamba-2", "gated_delta_net": "Gated delta net",
    "short_convolution": "Short convolution", "mlp": "MLP", "gated": "Gated MLP", "experts": "Mixture of experts",
    "rms": "RMSNorm", "layer": "LayerNorm", "batch": "BatchNorm",
}  # fmt: skip


def title(part: Part) -> str:
    """The name of a part as readers know it; of a part from outside its kind."""
    kind = str(getattr(part, "kind", type(part).__name__))
    return TITLES.get(kind, kind.replace("_", " ").capitalize())


def facts(part: Spec) -> list[str]:
    """The fields of a part that are not as usual, a line each."""
    return [line for name, value in part.dump().items() if name != "kind" and (line := _fact(name, value))]


def mixer_facts(part: Mixer, cost: MixerCost, causal: bool) -> list[str]:
    """Of a mixer also its direction and the state that it keeps of each row."""
    lines = facts(part)
    if isinstance(part, Attention | LatentAttention):
        lines.append("causal" if causal else "sees both directions")
    if causal:
        one, two = cost.state(1), cost.state(2)
        state = f"state: {two - one:,} numbers a token" if two > one else f"state: {one:,} numbers"
        lines += [state] if one else []
    return lines


def _fact(name: str, value: Any) -> str:
    match value:
        case True:
            return name
        case False | None:
            return ""
        case dict():
            return f"{name}: {', '.join(_words(value))}"
        case list() | tuple():
            return f"{name} {', '.join(map(str, value))}"
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
