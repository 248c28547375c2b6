"""Adoption of ideas by month. Each idea is a condition on the fields of a specification."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from archetype.gallery.card import Card

Fields = Mapping[str, list[Any]]


def _has(name: str, *values: Any) -> Callable[[Fields], bool]:
    # a field with one of these values, or with any value
    return lambda fields: any(not values or value in values for value in fields.get(name, []))


def _fewer_keys(fields: Fields) -> bool:
    heads, keys = fields.get("mixer.num_heads", []), fields.get("mixer.num_kv_heads", [])
    return any(isinstance(few, int) and few < max(heads, default=0) for few in keys)


# name of an idea: whether a model with these fields uses it
IDEAS: Mapping[str, Callable[[Fields], bool]] = {
    "grouped-query attention": _fewer_keys,
    "latent attention": _has("mixer.kind", "latent"),
    "QK-norm": lambda fields: any(
        kind != "none" for field in ("qk_norm", "query_norm") for kind in fields.get(f"mixer.{field}.kind", [])
    ),
    "sliding-window or chunked attention": lambda fields: (
        _has("mixer.pattern.kind", "window", "chunked")(fields) or _has("mixer.window")(fields)
    ),
    "layers without positions (NoPE)": lambda fields: (
        _has("mixer.position.kind", "none")(fields)
        and not _has("embedding.position.kind", "learned", "sinusoidal")(fields)
    ),
    # compressed attention always has sinks
    "attention sinks": lambda fields: _has("mixer.sinks")(fields) or _has("mixer.kind", "compressed")(fields),
    "gated attention": _has("mixer.gate.per"),
    "sparse attention with a learned indexer": lambda fields: any(
        re.fullmatch(r"mixer\.(pooling\.)?index\..*", name) for name in fields
    ),
    "gated delta rule (DeltaNet, Kimi delta attention)": _has("mixer.kind", "gated_delta_net"),
    "per-channel decay (Kimi delta attention)": _has("mixer.decay", "channel"),
    "matrix memory (mLSTM)": _has("mixer.kind", "mlstm"),
    "compressed keys and values": _has("mixer.kind", "compressed"),
    "keys and values shared across layers": _has("mixer.keys_from"),
    "several residual streams": _has("residual.kind", "streams", "gated_streams"),
    "residuals that attend to earlier blocks": _has("residual.kind", "depth_attention"),
    "layers that run several times": _has("weights_of"),
    "vectors looked up in each layer by token or n-gram": _has("feedforward.kind", "per_layer_input", "ngram_memory"),
    "Mamba-2": _has("mixer.kind", "mamba2"),
    "mixture of experts": _has("feedforward.kind", "experts"),
    "shared expert": _has("feedforward.shared.kind"),
    "sigmoid router": _has("feedforward.router.kind", "sigmoid"),
    "load balancing by router biases": _has("feedforward.router.expert_bias", True),
    "latent experts": _has("feedforward.latent_width"),
    "norm after each sublayer": _has("wiring.kind", "output_norm", "sandwich", "post_norm"),
}


class Idea(NamedTuple):
    """Adoption of one idea: id of the first model that uses it, and the number of models in each month."""

    name: str
    first: str
    users: tuple[int, ...]


class Adoption(NamedTuple):
    """Adoption of all ideas: months (YYYY-MM) with models, models per month, and ideas in order of first use."""

    months: tuple[str, ...]
    counts: tuple[int, ...]
    ideas: tuple[Idea, ...]


def adoption(cards: Sequence[Card]) -> Adoption:
    """Count the users of each idea by month, among models with a specification and a date."""
    said = sorted((card for card in cards if card.spec is not None and card.entry.date), key=lambda one: one.entry.date)
    months = tuple(dict.fromkeys(card.entry.date[:7] for card in said))
    counts = tuple(sum(card.entry.date.startswith(month) for card in said) for month in months)
    ideas = []
    for name, uses in IDEAS.items():
        users = [card for card in said if uses(card.fields)]
        if users:
            by_month = tuple(sum(card.entry.date.startswith(month) for card in users) for month in months)
            ideas.append((users[0].entry.date, Idea(name, users[0].entry.id, by_month)))
    return Adoption(months, counts, tuple(idea for _, idea in sorted(ideas, key=lambda one: one[0])))
