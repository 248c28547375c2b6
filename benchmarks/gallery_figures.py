"""Compare the gallery's counts with the best-known public gallery, in docs/gallery_figures.md.

    python -m benchmarks.gallery_figures

Where a key-value cache differs, the page gives the `archetype set` assignments that reproduce the other count.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from archetype.estimate.report import total_parameters
from archetype.gallery.card import OUTSIDE, Card, card_of, counted, published_digits
from archetype.gallery.entries import entries
from archetype.gallery.html import SIGNS
from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign

PAGE = Path(__file__).parents[1] / "docs" / "gallery_figures.md"


class Change(NamedTuple):
    """What the other gallery counts: assignments that turn our model into it, and a description."""

    assignments: tuple[str, ...]
    words: str


WINDOWS = Change(("layers[*].mixer.pattern=full",), "counts windows as full attention")
CHUNKS = Change(("layers[*].mixer.pattern=full",), "counts chunks as full attention")
INDEX = Change(("layers[*].mixer.index=null",), "leaves out the indexer's keys")
MIMO = Change(
    ("layers[*].mixer.pattern=full", "layers[*].mixer.num_kv_heads=4", "layers[*].mixer.v_head_dim=192"),
    "counts windows as full attention with the heads of global layers, and values as wide as keys",
)
# with `less`, which no assignment expresses:
GEMMA = Change(
    ("layers[*].mixer.pattern=full",),
    "counts windows as full attention, and one vector for the keys and values of a global layer (after norm and "
    "rotation they differ)",
)
POOLED = Change((), "leaves out the indexer's keys")


class Figure(NamedTuple):
    """KiB of key-value cache per token in bfloat16 in the public gallery, and how its count differs.

    Attributes:
        there: the public gallery's figure.
        change: what the public gallery counts; None if it counts as Archetype does.
        less: KiB that the public gallery leaves out in addition to `change`.
    """

    there: float
    change: Change | None = None
    less: float = 0.0

    def counted(self, model: ModelSpec) -> float:
        """Return a model's KiB as the public gallery counts them."""
        return growth(assign(model, list(self.change.assignments)) if self.change else model) - self.less


# From the gallery's copy of 2026-09-27.
FIGURES = {
    "gpt2-xl": Figure(300),
    "llama-3-8b": Figure(128),
    "llama-3.2-1b": Figure(32),
    "llama-3.2-3b": Figure(112),
    "olmo-2-7b": Figure(512),
    "phi-4": Figure(200),
    "deepseek-v3": Figure(68.6),
    "deepseek-r1": Figure(68.6),
    "gemma-3-27b": Figure(496, WINDOWS),
    "xlstm-7b": Figure(0),
    "llama-4-maverick": Figure(192, CHUNKS),
    "qwen3-0.6b": Figure(112),
    "qwen3-235b-a22b": Figure(188),
    "qwen3-30b-a3b": Figure(96),
    "qwen3-32b": Figure(256),
    "qwen3-4b": Figure(144),
    "qwen3-8b": Figure(144),
    "smollm3-3b": Figure(72),
    "kimi-k2": Figure(68.6),
    "glm-4.5": Figure(368),
    "glm-4.5-air": Figure(184),
    "qwen3-coder-flash-30b-a3b": Figure(96),
    "gpt-oss-120b": Figure(72, WINDOWS),
    "gpt-oss-20b": Figure(48, WINDOWS),
    "gemma-3-270m": Figure(18, WINDOWS),
    "qwen3-next-80b-a3b": Figure(24),
    "minimax-m2": Figure(248),
    "kimi-linear-48b-a3b": Figure(7.9),
    "olmo-3-32b": Figure(256, WINDOWS),
    "olmo-3-7b": Figure(512, WINDOWS),
    "intellect-3": Figure(184),
    "deepseek-v3.2": Figure(68.6, INDEX),
    "nemotron-3-nano-30b-a3b": Figure(6),
    "mimo-v2-flash": Figure(144, MIMO),
    "glm-4.7": Figure(368),
    "kimi-k2.5": Figure(68.6),
    "glm-5": Figure(87.8, INDEX),
    "minimax-m2.5": Figure(248),
    "qwen3.5-397b": Figure(30),
    "sarvam-30b": Figure(19),
    "sarvam-105b": Figure(36),
    "nemotron-3-super-120b-a12b": Figure(8),
    "mistral-small-4": Figure(22.5),
    "minimax-m2.7": Figure(248),
    "gemma-4-31b": Figure(840, GEMMA, 40),
    "gemma-4-26b-a4b": Figure(210, GEMMA, 10),
    "glm-5.1": Figure(87.8, INDEX),
    "qwen3.6-35b-a3b": Figure(20),
    "kimi-k2.6": Figure(68.6),
    "qwen3.6-27b": Figure(64),
    "hy3-preview": Figure(320),
    "deepseek-v4-flash": Figure(5.4, POOLED, 1.3125),
    "deepseek-v4-pro": Figure(7.7, POOLED, 1.875),
    "laguna-xs.2": Figure(160, WINDOWS),
    "gemma-4-12b": Figure(328, GEMMA, 8),
    "nemotron-3-ultra-550b-a55b": Figure(12),
    "kimi-k2.7-code": Figure(68.6),
    "minimax-m3": Figure(120, INDEX),
    "glm-5.2": Figure(87.8, INDEX),
    "soofi-s-30b-a3b": Figure(6),
    "btl-3-27b": Figure(64),
    "laguna-s-2.1": Figure(192, WINDOWS),
    "ling-3.0-flash": Figure(7.9),
    "nemotron-3.5-lightning-30b-a3b": Figure(6),
    "qwen3.8-27b": Figure(64),
    "ornith-1.5-35b-a3b": Figure(20),
}


def growth(model: ModelSpec) -> float:
    """Return the KiB by which the state grows with a token, averaged over the second half of the context."""
    cost, length = model_cost(model), model.context_length
    assert length is not None
    (after, _), (before, _) = cost.state(length), cost.state(length // 2)
    return 2 * (after - before) / (length - length // 2) / 1024


def has_digits_of(computed: float, there: float) -> bool:
    """Return whether a computed number, rounded to the decimals of a published one, equals it."""
    decimals = len(f"{there:g}".partition(".")[2])
    return round(computed, decimals) == there


@cache
def every_card() -> tuple[Card, ...]:
    """Return the cards of all models."""
    return tuple(map(card_of, entries().values()))


def cards() -> list[Card]:
    """Return the cards of all models with a specification."""
    return [card for card in every_card() if card.spec is not None]


def reasons_of(card: Card) -> list[tuple[str, int, str]]:
    """Return each published count that differs from the model's, with a matching count and its description."""
    counts, entry, reasons = card.report.parameters, card.entry, []
    claims: tuple[tuple[str, Literal["total", "active"]], ...] = ((entry.total, "total"), (entry.active, "active"))
    for claim, kind in claims:
        if not claim or published_digits(counts[kind], claim):
            continue
        others = [(count, f"{kind}{which}") for count, which in counted(card, kind)]
        outside, what = OUTSIDE.get(entry.id, (0, ""))
        others.append((counts[kind] + outside, f"{'active ' if kind == 'active' else ''}with {what}"))
        if kind == "total" and card.spec is not None and entry.id in COUNTED:
            count, words = COUNTED[entry.id]
            others.append((count(card.spec), words))
        if kind == "active" or entry.id not in OPEN:
            reasons.append((claim, *next(one for one in others if published_digits(one[0], claim))))
    return reasons


def with_prediction_layer(model: ModelSpec) -> int:
    """Return the parameters with a multi-token prediction layer, without the embedding and the output head."""
    total = total_parameters(model)
    last = total - total_parameters(assign(model, [f"num_layers={model.num_layers - 1}"]))
    d_model: int = getattr(model, "d_model")  # noqa: B009
    tables = (1 if model.head.shares_table else 2) * model.input_vocab_size * d_model
    return total - tables + last + 2 * d_model**2  # the last term projects a hidden state and an embedding


def with_an_index_in_each_layer(model: ModelSpec) -> int:
    return total_parameters(assign(model, ["layers[*].mixer.index.from_layer=null"]))


def without_tables_of_ngrams(model: ModelSpec) -> int:
    memories = [layer.feedforward for layer in model.layers if layer.feedforward.kind == "ngram_memory"]
    return total_parameters(model) - sum(memory.total_rows * memory.row_width for memory in memories)


GLM4 = (
    with_prediction_layer,
    "with the prediction layer, without the embedding and the output head (as in its report)",
)
OPEN = {"minimax-m3": "published as about 428B"}  # totals that no published part explains
COUNTED: dict[str, tuple[Callable[[ModelSpec], int], str]] = {
    "glm-4.5": GLM4,
    "glm-4.7": GLM4,
    "glm-5.3-flash": (with_prediction_layer, "with a prediction layer, without the embedding and the output head"),
    "glm-5.2": (with_an_index_in_each_layer, "of GLM-5, where every layer has an indexer"),
    "qwen3.8-flash-next": (without_tables_of_ngrams, "without the n-gram tables"),
}


KINDS = {"said": "specification", "read": "type only", "missing": "grey"}


def source_of(card: Card) -> str:
    """Return the source of a specification, or why there is none."""
    entry, config = card.entry, card.entry.evidence.config
    if card.spec is None:
        return entry.evidence.needs and f"needs {entry.evidence.needs}"
    base, *changes = entry.spec.split("; ")
    if "class" in config:
        return f"defaults of transformers' {config['class']}"
    if config.get("form") == "sizes":
        return f"sizes of {config['model']} in {config['repository']}"
    if config:
        return f"config.json of {config['model']}"
    changed = f", {len(changes)} assignment{'s' * (len(changes) > 1)}" if changes else ""
    return (f"{entries()[base].name}" if base in entries() and base != entry.id else f"preset {base}") + changed


def all_models() -> list[str]:
    """Return the section with one row per model: its specification, the source and the checks."""
    every = every_card()
    kinds = Counter(card.kind for card in every)
    said = [card for card in every if card.kind == "said"]
    passed = [sum(card.marks[index].state == "yes" for card in said) for index in range(4)]
    rows = []
    for number, card in enumerate(every, 1):
        signs = " | ".join(SIGNS[mark.state] for mark in card.marks)
        rows.append(f"| {number} | {card.entry.name} | {KINDS[card.kind]} | {signs} | {source_of(card)} |")
    return [
        "## Every model",
        "",
        f"Of {len(every)} models, {kinds['said']} have a specification. {kinds['read']} have only a supported type: "
        "small models of the type agree with\ntransformers, but no public file gives the model's sizes. "
        f"{kinds['missing']} are grey: the last column names what they need.\n",
        f"The columns are four checks of the {len(said)} specifications. {passed[0]} have as many parameters as the "
        f"published tensors (or those that\ntransformers would save). {passed[1]} match the published count. For "
        f"{passed[2]}, small models of the type give transformers' logits. For {passed[3]}, each\npublished tensor "
        "maps to a parameter. A dash means that there is nothing to compare with.",
        "",
        "| | model | status | parameters | count | logits | weights | specification from, or what is missing |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def page() -> str:
    """Return the page."""
    caches, counts = [], []
    for name, figure in FIGURES.items():
        entry = entries()[name]
        model = entry.specification()
        assert model is not None, name
        remade = ""
        if figure.change is not None:
            settings = " ".join(f"`{change}`" for change in figure.change.assignments)
            settings = f" with {settings}" if settings else ""
            less = f", less {figure.less:g}" if figure.less else ""
            remade = f"{figure.counted(model):.4g}{settings}{less}: {figure.change.words}"
        caches.append(f"| {entry.name} | {figure.there:g} | {growth(model):.4g} | {remade} |")
    for card in cards():
        entry = card.entry
        total, active = (card.report.parameters[kind] for kind in ("total", "active"))
        outside, what = OUTSIDE.get(entry.id, (0, ""))
        reasons = "; ".join(
            [f"{count:,} {words}" for _, count, words in reasons_of(card)]
            + [f"{total + outside:,} with {what}, {words}" for one, words in OPEN.items() if one == entry.id]
        )
        counts.append(
            f"| {entry.name} | {entry.total} | {total:,} | {entry.active} | {f'{active:,}' if entry.active else ''} "
            f"| {reasons} |"
        )
    return "\n".join([
        "# The gallery's counts, compared with a public gallery's",
        "",
        "Which models of `archetype gallery` have a specification, and do their counts equal those of the best-known "
        "public gallery?\nWritten by `make zoo`; a test computes each number again.",
        "",
        *all_models(),
        "## Key-value cache per token",
        "",
        "KiB by which the state grows per token in bfloat16, averaged over the second half of the context, where "
        "sliding windows are full.\nWhere the public gallery counts differently, the last column reproduces its figure "
        "and gives the assignments. Gemma 4 E2B is omitted: the\npublic gallery counts keys in each of its 35 layers "
        "(35 KiB), but 20 layers reuse the keys of earlier layers, and only 3 of the others\nhave no window (6 KiB).",
        "",
        "| model | public gallery | Archetype | the public gallery's count, reproduced |",
        "| --- | --- | --- | --- |",
        *caches,
        "",
        "## Parameters",
        "",
        f"Published parameters of the {len(counts)} models with a specification, and those counted from the "
        "specification. Where they differ, the last column\nreproduces the published count.",
        "",
        "| model | published | counted | published, active | counted, active | the published count, reproduced |",
        "| --- | --- | --- | --- | --- | --- |",
        *counts,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
