"""The gallery's models as plain data: one row per model, and what its columns count."""

from collections.abc import Mapping, Sequence
from typing import Any

from archetype.gallery.card import Card, Layers

# columns of the table whose names do not say what they count
COLUMNS = {
    "published_total": "parameters as the makers round them",
    "published_active": "parameters used for one token, as the makers round them",
    "status": "said: with a specification; read: of a supported type, sizes unknown; missing: a part is not supported",
    "needs": "what is missing",
    "total": "parameters, counted from the specification",
    "active": "parameters used for one token, counted",
    "layers": "distinct layers, as the makers count them",
    "layers_run": "layers that one token passes through; more than `layers` if the model runs them several times",
    "context": "longest sequence in tokens",
    "state_bytes_per_token": "growth of the state of one sequence in bfloat16; windows and recurrences do not grow",
    "mark_*": "yes, no, or unknown if there is nothing to compare with; each page says what was compared",
}


def table_rows(cards: Sequence[Card]) -> list[Mapping[str, Any]]:
    """Return the table of all models as plain data, one row per model."""
    rows: list[Mapping[str, Any]] = []
    for card in cards:
        entry = card.entry
        counts = card.report.parameters if card.spec is not None else {}
        state = card.report.state if card.spec is not None else {}
        layers = None if card.spec is None else Layers.of(card.spec)
        marks = {mark.name.replace(" ", "_"): mark.state for mark in card.marks}
        rows.append({
            "id": entry.id, "name": entry.name, "repository": entry.repository, "type": entry.type, "date": entry.date,
            "published_total": entry.total, "published_active": entry.active, "report": entry.report,
            "ancestor": entry.ancestor, "status": card.kind, "needs": entry.evidence.needs,
            "total": counts.get("total"), "active": counts.get("active"),
            "layers": layers.distinct if layers else None,
            "layers_run": layers.run if layers else None,
            "context": card.spec.context_length if card.spec is not None else None,
            "state_bytes_per_token": state.get("bytes_per_token"),
            **{f"mark_{name}": value for name, value in marks.items()}, "why": entry.why,
        })  # fmt: skip
    return rows
