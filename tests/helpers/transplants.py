"""What a transplant's report says of each tensor, held against the tensors of both models."""

import re
from typing import Any

import torch
from torch import Tensor

from archetype.models.build import build
from archetype.nn.ledger import Ledger

# numbers that were computed, and are neither the donor's nor as they were drawn
COMPUTED = re.compile(
    r"times|doubled|divided|mean|stored|square|heads of the donor|numbers|those of the donor|position alone"
)


def check_said(donor: Any, model: Any, ledger: Ledger, seed: int = 0) -> None:
    """Every tensor is what the report says: kept to the bit, entries of the donor's, or as it was drawn."""
    before, after = donor.state_dict(), model.state_dict()
    assert ledger.tensors.keys() == after.keys()
    drawn = build(model.spec, seed, dtype=model.dtype).state_dict()
    for name, taken in ledger.tensors.items():
        assert set(taken.sources) <= before.keys(), (name, taken)
        wrong = _fault(after[name], drawn[name], [before[source] for source in taken.sources], taken.how, taken.note)
        assert not wrong, (name, taken, wrong)


def _fault(x: Tensor, drawn: Tensor, sources: list[Tensor], how: str, note: str) -> str:
    if how == "kept":
        return "" if not note and len(sources) == 1 and torch.equal(x, sources[0]) else "is not the donor's"
    if how == "new":
        return _fault_of_new(x, drawn, note)
    if not sources or not note:
        return "has no source, or no note"
    if how == "merged" or COMPUTED.search(note):
        return ""
    known = torch.cat([source.flatten() for source in sources])
    if "as initialized" in note:
        known = torch.cat((known, drawn.flatten()))
    if "zero" in note:
        known = torch.cat((known, torch.zeros(1).to(known)))
    if not torch.isin(x, known).all():
        return "has other entries"
    if how == "grown" and not torch.isin(sources[0], x).all():
        return "has lost entries"
    return ""


def _fault_of_new(x: Tensor, drawn: Tensor, note: str) -> str:
    if note.startswith("as initialized") or note == "redrawn, since it lists the donor's experts":
        return "" if torch.equal(x, drawn) else "is not as it was drawn"
    if note == "so that it adds nothing":
        return "" if not x.any() or x.eq(-1).all() else "adds something"
    if number := re.fullmatch(r"all (\S+)", note):
        return "" if torch.allclose(x, torch.full_like(x, float(number[1])), rtol=1e-4) else "is another number"
    return "" if COMPUTED.search(note) or note.startswith("drawn with") else "has no reason"
