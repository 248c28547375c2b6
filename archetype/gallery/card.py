"""What a card of the gallery shows: counts, marks, the state by length, and the changes from the ancestor."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from archetype.errors import SpecError
from archetype.estimate.report import CostReport, cost_report
from archetype.estimate.roofline import weights_read
from archetype.families.index import preset_facts
from archetype.families.registry import preset
from archetype.gallery.entries import Entry, entries
from archetype.models.spec import ModelSpec
from archetype.spec.edit import differences, leaves
from archetype.spec.steps import assignments

UNITS = {"M": 10**6, "B": 10**9, "T": 10**12}
FIRST_LENGTH = 128
SHOWN_LENGTH = 8192  # of the cost table
# Parameters that the published count includes and the text model lacks, and what they belong to.
OUTSIDE: Mapping[str, tuple[int, str]] = {
    "gemma-4-e2b": (475_728_160, "its audio and image encoders"),
    "gemma-4-e4b": (308_756_768, "its audio encoder"),
    "glm-5.3-flash": (460_072_448, "its image encoder"),
    "minimax-m3": (865_567_232, "its image encoder"),
    "qwen3.5-397b": (456_010_480, "its image encoder"),
}
State = Literal["yes", "no", "unknown"]


class Mark(NamedTuple):
    """One of a card's four checks."""

    name: str
    state: State
    text: str


class Point(NamedTuple):
    """Cost of decoding at one length."""

    length: int
    state: int  # bytes of one sequence
    flops: int  # of the next token
    read: int  # bytes of the state that the next token reads


class Layers(NamedTuple):
    """Layers of a model. Makers count `distinct`; a looped model runs them several times."""

    distinct: int
    run: int  # through which one token passes
    lookups: int  # further ones that only add vectors looked up by token

    @classmethod
    def of(cls, spec: ModelSpec) -> "Layers":
        blocks = [block for stack in spec.stacks for block in stack.layers]
        lookups = [
            block.mixer.is_absent and bool(block.feedforward.layer_features or block.feedforward.tokens_read_by)
            for block in blocks
        ]
        run = len(blocks) - sum(lookups)
        return cls(run - sum(block.weights_of is not None for block in blocks), run, sum(lookups))


class PartCost(NamedTuple):
    """Sum of the modules of one part in equal layers."""

    part: str
    parameters: int
    active: int
    decode: int


@dataclass(frozen=True)
class Card:
    """Everything on a card; `spec` is None if the model's sizes are unknown or a part is not supported."""

    entry: Entry
    spec: ModelSpec | None

    @cached_property
    def report(self) -> CostReport:
        assert self.spec is not None
        return self.report_at(min(self.spec.context_length or SHOWN_LENGTH, SHOWN_LENGTH))

    def report_at(self, length: int) -> CostReport:
        assert self.spec is not None
        return cost_report(self.spec, 1, length, attention="allowed")

    @property
    def kind(self) -> Literal["said", "read", "missing"]:
        """`said`: with a specification; `read`: only the type is supported; `missing`: a part is not supported."""
        if self.spec is not None:
            return "said"
        return "missing" if self.entry.evidence.needs else "read"

    @cached_property
    def ancestor(self) -> ModelSpec | None:
        """Specification of the ancestor, if both are known."""
        name = self.entry.ancestor
        if not name or self.spec is None:
            return None
        if name in entries():
            return entries()[name].specification()
        return preset(name) if name in preset_facts() else None

    @cached_property
    def changes(self) -> list[str]:
        """Assignments that turn the ancestor's specification into this one."""
        return [] if self.ancestor is None or self.spec is None else assignments(self.ancestor, self.spec)

    @cached_property
    def num_changes(self) -> int:
        """Number of changes from the ancestor: assignments, or fields that differ if a stack is assigned whole."""
        if self.ancestor is not None and self.spec is not None and any("layers=[" in line for line in self.changes):
            return len(differences(self.ancestor, self.spec))
        return len(self.changes)

    @property
    def states(self) -> list[tuple[int, int]]:
        """(length, state bytes) up to the context; between two lengths the state is linear if windows are even."""
        assert self.spec is not None
        longest = max(self.spec.context_length or SHOWN_LENGTH, FIRST_LENGTH)
        doublings = range((longest - 1).bit_length() - (FIRST_LENGTH - 1).bit_length())
        lengths = [FIRST_LENGTH << doubling for doubling in doublings] + [longest]
        memory = self.report.memory_cost
        return [(length, memory.state(1, length, None)) for length in lengths]

    @cached_property
    def points(self) -> list[Point]:
        """Costs of decoding at the lengths of `states`."""
        decode = {length: self.report_at(length).flops["decode"] for length, _ in self.states}
        read = self.report.memory_cost.state_read
        return [Point(length, state, decode[length], read(1, length)) for length, state in self.states]

    @property
    def weights_read(self) -> int:
        """Bytes of bfloat16 weights read to decode one token of one sequence."""
        return weights_read(self.report, 1, "decode")

    @cached_property
    def parts(self) -> list[PartCost]:
        """Costs by part: tables, the mixer and the network of each group of layers, and the head."""
        sums: dict[str, list[int]] = {}
        for row in self.report.rows:
            # such as encoder.blocks.0-2,4.mixer.q, whose part is encoder.mixer in 4 layers
            match = re.fullmatch(r"(.*?)blocks\.[\d,.*-]+\.([a-z]\w*).*", row.module)
            part = row.module.split(".")[0]
            if row.in_block and match is not None:
                name = re.sub(r"_(norm|post_norm|residual)$", "", match[2])
                part = f"{match[1]}{name} of {row.layers} layer{'s' * (row.layers > 1)}"
            total = sums.setdefault(part, [0, 0, 0])
            for index, value in enumerate((row.parameters, row.active, row.decode)):
                total[index] += value
        return [PartCost(part, *total) for part, total in sums.items()]

    @cached_property
    def marks(self) -> list[Mark]:
        """The four checks. A test computes each again."""
        return [*_counted(self), *_claimed(self), _agrees(self), _loads(self)]

    @cached_property
    def fields(self) -> Mapping[str, list[Any]]:
        """Distinct values of each field over all layers, such as `mixer.num_heads`, and some counts.

        Parts that run together have the fields of a single part: `feedforward.kind` may be gated and experts.
        """
        fields: dict[str, list[Any]] = {"type": [self.entry.type]}
        fields |= {"date": [self.entry.date]} if self.entry.date else {}
        if self.spec is None:
            return fields
        counts = self.report.parameters
        fields |= {
            "parameters": [counts["total"]],
            "active": [counts["active"]],
            "layers": [Layers.of(self.spec).distinct],
        }
        fields["state"] = [self.report.state["bytes_per_token"]]
        for path, value in leaves(self.spec.dump(full=True, each_layer=True)):
            name = re.sub(r"(^|\.)layers\[\d+\]\.|(\.parts)?\[\d+\]", lambda match: match[1] or "", path)
            if value not in (None, False, "") and name not in ("version", "name"):
                values = fields.setdefault(name, [])
                if value not in values:
                    values.append(value)
        return fields


def card_of(entry: Entry) -> Card:
    """Return the card of a model."""
    return Card(entry, entry.specification())


def published_digits(count: int, claim: str, zeros: bool = False) -> bool:
    """Return whether a count has the digits of a published one such as 671B, rounded or cut off.

    Trailing zeros of a whole number are not significant unless `zeros` is set: 230B may be 228.7 billion.
    """
    match = re.fullmatch(r"(\d+?)(0*)(?:\.(\d+))?([MBT])", claim)
    if match is None:
        raise SpecError(claim, "is not a number of parameters", "write it like 671B or 0.6B")
    digits = match[3] or ""
    unit = UNITS[match[4]] // 10 ** len(digits)
    step, published = (
        unit if digits or zeros else unit * 10 ** len(match[2]),
        int(f"{match[1]}{match[2]}{digits}") * unit,
    )
    return published in (count // step * step, round(count / step) * step)


def counted(card: Card, kind: Literal["total", "active"]) -> Iterator[tuple[int, str]]:
    """Yield the parameter counts that makers publish, each with what it leaves out."""
    counts = card.report.parameters
    without = counts["active_non_embedding" if kind == "active" else "non_embedding"]
    yield counts[kind], ""
    yield without, " without the token embedding"
    if head := sum(part.parameters for part in card.parts if part.part == "lm_head"):
        yield without - head, " without the embedding and the output head"


def _counted(card: Card) -> Iterator[Mark]:
    reading = card.entry.evidence
    if card.spec is None or reading.numbers is None:
        text = "not compared with the published tensors" if card.spec else "no specification to count"
        yield Mark("parameters", "unknown", text)
        return
    total = card.report.parameters["total"]
    whose = "the published header" if reading.numbers_of == "header" else f"the tensors of {reading.numbers_of}"
    if total == reading.numbers:
        yield Mark("parameters", "yes", f"{total:,}, equal to {whose}")
    else:
        yield Mark("parameters", "no", f"{total:,} here, {reading.numbers:,} in {whose}")


def _claimed(card: Card) -> Iterator[Mark]:
    entry = card.entry
    claim, word = (entry.active, "active") if entry.active else (entry.total, "in total")
    if card.spec is None or not claim:
        yield Mark("as published", "unknown", f"published: {claim} {word}" if claim else "no count is published")
        return
    counts = card.report.parameters
    kind: Literal["total", "active"] = "active" if entry.active else "total"
    fitting = [one for one in counted(card, kind) if published_digits(one[0], claim)]
    if fitting:  # 10B are 10.4 billion rather than 11.0
        count, which = next((one for one in fitting if published_digits(one[0], claim, zeros=True)), fitting[0])
        yield Mark("as published", "yes", f"{count:,} {word}{which}; published as {claim}")
        return
    outside, what = OUTSIDE.get(entry.id, (0, ""))
    if outside and published_digits(counts[kind] + outside, claim):
        text = f"{counts[kind]:,} {word}, plus {outside:,} in {what}; published as {claim}"
        yield Mark("as published", "yes", text)
        return
    yield Mark("as published", "no", f"{counts[kind]:,} {word}; published as {claim}")


def _agrees(card: Card) -> Mark:
    version = card.entry.evidence.agrees
    if version:
        text = f"small {card.entry.type} models give the logits of transformers {version} within 1e-5"
        return Mark("logits", "yes", text)
    if card.entry.evidence.needs:
        return Mark("logits", "no", f"needs {card.entry.evidence.needs}")
    return Mark("logits", "unknown", "not compared with a reference")


def _loads(card: Card) -> Mark:
    reading = card.entry.evidence
    if reading.needs:
        return Mark("weights", "no", "the published weights cannot be loaded")
    if reading.places is None:
        return Mark("weights", "unknown", "not compared with the names of the published tensors")
    whose = "published header" if reading.numbers_of == "header" else f"files that {reading.numbers_of} writes"
    return Mark("weights", "yes", f"each tensor of the {whose} maps to a parameter")
