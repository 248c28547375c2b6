"""Report of a transplant: tensors, promises, measurements, and costs before and after."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archetype.io.files import read_json
from archetype.nn.ledger import DRAWN, Ledger
from archetype.spec.edit import Change
from archetype.surgery.proof import Proof

REPORT = "transplant.json"


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of the report in a folder; None without a report."""
    file = folder / REPORT
    return read_json(file) if file.is_file() else None


def record_from(donor: str, report: "Report") -> dict[str, Any]:
    """Return the record of a report with its donor, whose path is found from any working directory."""
    path = Path(donor)
    return {"donor": str(path.absolute()) if path.exists() else donor} | report.record()


def new_tensors(record: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the names of the tensors that do not come from the donor; None without a record."""
    if record is None:
        return None
    return tuple(name for name, taken in record["tensors"].items() if taken["how"] == DRAWN)


@dataclass(frozen=True)
class Exchange:
    """A new vocabulary, and the loss of the same text with each vocabulary.

    Attributes:
        copied: tokens that both vocabularies have.
        composed: tokens that begin from the mean of the donor's tokens that spell them.
        drawn: tokens that begin from the mean of all tokens.
        before: cross-entropy of the donor, in nats per byte.
        after: cross-entropy of the new model.
    """

    copied: int
    composed: int
    drawn: int
    before: float
    after: float


@dataclass(frozen=True)
class Report:
    """What became of a donor.

    Attributes:
        changes: every field in which the specifications differ, as (path, before, after).
        ledger: where each tensor of the new model comes from, and what is promised of each part.
        proof: comparison on a text; None if there is nothing to compare.
        costs: measures of both models: {name: (before, after)}.
        exchange: comparison of two vocabularies, whose tokens cannot be compared one by one; None without another.
        layers: the donor's layer of each new layer.
    """

    changes: tuple[Change, ...]
    ledger: Ledger
    proof: Proof | None
    costs: dict[str, tuple[float, float]]
    exchange: Exchange | None = None
    layers: tuple[int, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the report as plain data with stable keys."""
        return {
            "changes": [{"path": path, "before": before, "after": after} for path, before, after in self.changes],
            "tensors": {name: asdict(taken) for name, taken in sorted(self.ledger.tensors.items())},
            "promise": self.ledger.start.name.lower(),
            "promises": {
                place: {"start": start.name.lower(), "why": why}
                for place, (start, why) in sorted(self.ledger.starts.items())
            },
            "proof": self.proof and asdict(self.proof) | {"start": self.proof.start.name.lower()},
            "exchange": self.exchange and asdict(self.exchange),
            "layers": list(self.layers),
            "costs": {name: {"before": before, "after": after} for name, (before, after) in self.costs.items()},
        }

    def lines(self) -> Iterator[str]:
        """Yield the report in words."""
        counts = Counter(taken.how for taken in self.ledger.tensors.values())
        yield "tensors: " + ", ".join(f"{count} {how}" for how, count in counts.most_common())
        yield from (f"  {line}" for line in self._changed_tensors())
        for reason, places in self._reasons().items():
            yield f"  {places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''}: {reason}"
        for name, (before, after) in self.costs.items():
            yield f"{name}: {before:,.0f} -> {after:,.0f}" + (f" ({after / before:.2f} x)" if before else "")
        if self.proof is not None:
            yield from self._proof(self.proof)
        if (exchange := self.exchange) is not None:
            tokens = f"{exchange.copied:,} copied, {exchange.composed:,} composed of others, {exchange.drawn:,} new"
            yield f"vocabulary: {tokens}"
            yield f"  loss {exchange.before:.4f} -> {exchange.after:.4f} nats per byte"

    def _changed_tensors(self) -> Iterator[str]:
        # tensors of different layers that have the same name and were made in the same way, as one line
        groups = Counter(
            (taken.how, ".".join("*" if part.isdecimal() else part for part in name.split(".")), taken.note)
            for name, taken in self.ledger.tensors.items()
            if taken.how != "kept"
        )
        for (how, name, note), count in groups.items():
            yield f"{how}: {name}{f' ({count})' if count > 1 else ''}{f': {note}' if note else ''}"

    def _reasons(self) -> dict[str, list[str]]:
        reasons: dict[str, list[str]] = {}
        for place, (start, why) in sorted(self.ledger.starts.items()):
            if why:
                reasons.setdefault(f"{start.words} ({why})", []).append(place)
        return reasons

    def _proof(self, proof: Proof) -> Iterator[str]:
        of = f"start on {proof.num_tokens:,} tokens: {proof.start.words}"
        yield f"{of}, largest difference {proof.difference:.1e} of the logits' deviation"
        if proof.start.name != "SAME":
            yield (
                f"  KL {proof.divergence:.4g} nats per token, same next token {100 * proof.agreement:.1f} %, "
                f"loss {proof.loss_before:.4f} -> {proof.loss_after:.4f}"
            )
            far = [layer for layer in proof.layers if layer.distance > 1e-4]
            if far:
                yield "  distance by layer: " + ", ".join(f"{layer.layer}: {layer.distance:.2g}" for layer in far)
