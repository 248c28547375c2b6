"""Change the architecture of a loaded model, and compare it with its donor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from archetype.api.language_model import LanguageModel
from archetype.data.library_text import library_text
from archetype.errors import DataError, SpecError
from archetype.estimate.report import cost_report
from archetype.io import atomic
from archetype.models.spec import ModelSpec
from archetype.nn.transplant import Ledger
from archetype.spec.edit import differences
from archetype.surgery.layers import origins
from archetype.surgery.operation import Cuts, fill
from archetype.surgery.proof import Proof, compare
from archetype.surgery.report import Report
from archetype.weights.packed import is_packed

REPORT = "transplant.json"
ROWS, LONGEST = 4, 512  # rows of tokens that the models are compared on, and their length at most


class Transplanted(NamedTuple):
    """The new model, and what became of its donor."""

    model: LanguageModel
    report: Report


def transplant(
    donor: LanguageModel,
    spec: ModelSpec,
    text: str | None = None,
    layers: Sequence[int] | None = None,
    choices: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Transplanted:
    """Return a model of another specification with the weights of a donor. The arguments are those of the API."""
    if is_packed(donor.model):
        raise SpecError("donor", "has packed matrices, which cannot be changed", "use the unpacked model")
    model, ledger = fill(donor.model, spec, Cuts(layers, {}, choices or {}), seed)
    proof: Proof | None = None
    if spec.continues_text:
        rows = rows_of(donor, spec, text)
        proof = compare(donor.model, model, rows, origins(donor.spec.stacks[0], spec.stacks[0], layers))  # type: ignore[arg-type]
    # the donor's format may not be able to express the new model
    changed = replace(donor, spec=spec, model=model, family=None, left_out={})
    return Transplanted(changed, report_of(donor.spec, spec, ledger, proof))


def report_of(old: ModelSpec, new: ModelSpec, ledger: Ledger, proof: Proof | None = None) -> Report:
    """Return the report of a transplant, with what both models cost."""
    return Report(tuple(differences(old, new)), ledger, proof, _costs(old, new))


def save(transplanted: Transplanted, folder: Path, donor: str) -> None:
    """Write the new model as a run directory, with its report."""
    transplanted.model.save(folder)
    atomic.write_json(folder / REPORT, {"donor": donor} | transplanted.report.record())


def rows_of(lm: LanguageModel, spec: ModelSpec, text: str | None) -> list[Tensor]:
    """Return rows of token ids, (1, T): of a text, of this Python's library, or random ones without a tokenizer.

    Tokens that the new model does not have are left out.
    """
    length = min(LONGEST, lm.spec.context_length, spec.context_length)
    vocabulary = min(lm.spec.input_vocab_size, spec.input_vocab_size)
    if lm.tokenizer is None:
        if text is not None:
            raise DataError("text", "the donor has no tokenizer", "leave the text out; random tokens are compared then")
        generator = torch.Generator().manual_seed(0)
        return [torch.randint(vocabulary, (1, length), generator=generator) for _ in range(ROWS)]
    # a token has at least a byte in nearly all texts; the start of the library's text is that of its first modules
    text = library_text()[: 16 * ROWS * length] if text is None else text
    ids = [id for id in lm.tokenizer.encode(text) if id < vocabulary][: ROWS * length]
    if len(ids) < 2:
        raise DataError("text", "has fewer than two tokens, and nothing to predict", "use a longer text")
    return [torch.tensor([ids[start : start + length]]) for start in range(0, len(ids), length) if len(ids) - start > 1]


def _costs(old: ModelSpec, new: ModelSpec) -> dict[str, tuple[float, float]]:
    length = min(spec.context_length for spec in (old, new))
    before, after = (cost_report(spec, length=length) for spec in (old, new))
    return {
        "parameters": (before.parameters["total"], after.parameters["total"]),
        "active parameters": (before.parameters["active"], after.parameters["active"]),
        f"state bytes at {length:,} tokens, bfloat16": (before.state["bytes"], after.state["bytes"]),
        "FLOPs of a token": (before.flops["decode"], after.flops["decode"]),
    }
