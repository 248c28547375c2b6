"""Report of a transplant: tensors, promises, what was proved, and costs before and after."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archetype.io.files import read_json
from archetype.nn.transplant import Ledger
from archetype.spec.edit import Change
from archetype.surgery.proof import Proof

REPORT, DRAWN = "transplant.json", "new"


def new_tensors(folder: Path) -> tuple[str, ...] | None:
    """Return the names of the tensors that are new according to the report in a folder; None without a report."""
    file = folder / REPORT
    if not file.is_file():
        return None
    return tuple(name for name, taken in read_json(file).get("tensors", {}).items() if taken.get("how") == DRAWN)


@dataclass(frozen=True)
class Report:
    """What became of a donor.

    Attributes:
        changes: every field in which the specifications differ, as (path, before, after).
        ledger: where each tensor of the new model comes from, and what is promised of each part.
        proof: comparison on a text; None if there is nothing to compare.
        costs: measures of both models: {name: (before, after)}.
    """

    changes: tuple[Change, ...]
    ledger: Ledger
    proof: Proof | None
    costs: dict[str, tuple[float, float]]

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
            "costs": {name: {"before": before, "after": after} for name, (before, after) in self.costs.items()},
        }

    @property
    def new(self) -> tuple[str, ...]:
        """Names of the tensors that do not come from the donor."""
        return tuple(sorted(name for name, taken in self.ledger.tensors.items() if taken.how == DRAWN))

    def lines(self) -> Iterator[str]:
        """Yield the report in words."""
        counts = Counter(taken.how for taken in self.ledger.tensors.values())
        yield "tensors: " + ", ".join(f"{count} {how}" for how, count in counts.most_common())
        for reason, places in self._reasons().items():
            yield f"  {places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''}: {reason}"
        for name, (before, after) in self.costs.items():
            yield f"{name}: {before:,.0f} -> {after:,.0f}" + (f" ({after / before:.2f} x)" if before else "")
        if self.proof is not None:
            yield from self._proof(self.proof)

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
