"""Compare the gallery's counts with the best-known public gallery, in docs/gallery_figures.md.

    python -m benchmarks.gallery_figures

Where a key-value cache differs, an assignment is given with which `archetype set` makes the model that they count.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from archetype.estimate.report import total_parameters
from archetype.gallery.card import OUTSIDE, Card, card_of, published_digits
from archetype.gallery.entries import entries
from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign

PAGE = Path(__file__).parents[1] / "docs" / "gallery_figures.md"
WINDOWS = ("layers[*].mixer.pattern=full", "windows as if they grew with the text")
INDEX = ("layers[*].mixer.index=null", "no keys of the index")


class Figure(NamedTuple):
    """KiB of the key-value cache for each token in bfloat16, as the public gallery says, and what differs there."""

    there: float
    change: tuple[str, str] | None = None  # assignment that makes the model counted there, and what that leaves out


# From the gallery's copy of 2026-09-27, as far as its figures were noted.
FIGURES = {
    "olmo-2-7b": Figure(512),
    "phi-4": Figure(200),
    "llama-3-8b": Figure(128),
    "deepseek-v3": Figure(68.6),
    "gemma-3-27b": Figure(496, WINDOWS),
    "qwen3-235b-a22b": Figure(188),
    "smollm3-3b": Figure(72),
    "gpt-oss-120b": Figure(72, WINDOWS),
    "gpt-oss-20b": Figure(48, WINDOWS),
    "gemma-3-270m": Figure(18, WINDOWS),
    "glm-5": Figure(87.8, INDEX),
}


def growth(model: ModelSpec) -> float:
    """Return the KiB by which the state grows with a token, averaged over the second half of the context."""
    cost, length = model_cost(model), model.context_length
    assert length is not None
    (after, _), (before, _) = cost.state(length), cost.state(length // 2)
    return 2 * (after - before) / (length - length // 2) / 1024


def has_digits_of(computed: float, there: float) -> bool:
    """Return whether a computed number rounds to a published one, with as many decimals."""
    decimals = len(f"{there:g}".partition(".")[2])
    return round(computed, decimals) == there


@cache
def cards() -> tuple[Card, ...]:
    """Return the cards of all models with a specification."""
    return tuple(card for entry in entries().values() if (card := card_of(entry)).spec is not None)


def reasons_of(card: Card) -> list[tuple[str, int, str]]:
    """Return each published count whose digits are not those of the model, with what was counted instead, in words."""
    counts, entry, reasons = card.report.parameters, card.entry, []
    for claim, kind, without in (
        (entry.total, "total", "non_embedding"),
        (entry.active, "active", "active_non_embedding"),
    ):
        if not claim or published_digits(counts[kind], claim):
            continue
        others = [(counts[without], f"{kind} without the table of tokens")]
        if kind == "total" and card.spec is not None:
            outside, what = OUTSIDE.get(entry.id, (0, ""))
            others.append((counts[kind] + outside, f"with {what}"))
            if entry.id in COUNTED:
                count, words = COUNTED[entry.id]
                others.append((count(card.spec), words))
        reasons.append((claim, *next(one for one in others if published_digits(one[0], claim))))
    return reasons


def with_prediction_layer(model: ModelSpec) -> int:
    """Return the parameters with one more layer that predicts a further token, without the tables of tokens."""
    total = total_parameters(model)
    last = total - total_parameters(assign(model, [f"num_layers={model.num_layers - 1}"]))
    d_model: int = getattr(model, "d_model")  # noqa: B009
    tables = (1 if model.head.shares_table else 2) * model.input_vocab_size * d_model
    return total - tables + last + 2 * d_model**2  # and the projection of a vector and an embedding


def with_an_index_in_each_layer(model: ModelSpec) -> int:
    return total_parameters(assign(model, ["layers[*].mixer.index.from_layer=null"]))


GLM4 = (with_prediction_layer, "with the prediction layer, without the tables of tokens, as its report counts")
COUNTED: dict[str, tuple[Callable[[ModelSpec], int], str]] = {
    "glm-4.5": GLM4,
    "glm-4.7": GLM4,
    "glm-5.2": (with_an_index_in_each_layer, "of GLM-5, in which each layer has an index of its own"),
}


def page() -> str:
    """Return the page."""
    caches, counts = [], []
    for name, figure in FIGURES.items():
        entry = entries()[name]
        model = entry.specification()
        assert model is not None, name
        change, words = figure.change or ("", "")
        remade = f"{growth(assign(model, [change])):.4g} by `{change}`: {words}" if change else ""
        caches.append(f"| {entry.name} | {figure.there:g} | {growth(model):.4g} | {remade} |")
    for card in cards():
        entry = card.entry
        total, active = (card.report.parameters[kind] for kind in ("total", "active"))
        reasons = "; ".join(f"{count:,} {words}" for _, count, words in reasons_of(card))
        counts.append(
            f"| {entry.name} | {entry.total} | {total:,} | {entry.active} | {f'{active:,}' if entry.active else ''} "
            f"| {reasons} |"
        )
    return "\n".join([
        "# The gallery's counts beside a public gallery's",
        "",
        "Do the cards of `archetype gallery` say what the best-known public gallery says, and where they do not, why? "
        "Written by `make zoo`; a test\ncomputes each number again.",
        "",
        "## Key-value cache for each token",
        "",
        "KiB in bfloat16 by which the state grows with one more token, averaged over the second half of the context, "
        "in which windows are full.\nWhere the other gallery counts another model, the last column has the assignment "
        "that makes it, and what is then computed.",
        "",
        "| model | there | here | as counted there |",
        "| --- | --- | --- | --- |",
        *caches,
        "",
        "## Parameters",
        "",
        f"Of the {len(counts)} models with a specification: published, and counted from the specification. Where the "
        "digits of a count differ, the last\ncolumn says what was counted.",
        "",
        "| model | published | counted | published, active | counted, active | counted as published |",
        "| --- | --- | --- | --- | --- | --- |",
        *counts,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
