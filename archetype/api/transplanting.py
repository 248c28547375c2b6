"""Change the architecture of a loaded model, and compare it with its donor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archetype.api.language_model import LanguageModel
from archetype.data.library_text import library_text
from archetype.errors import DataError, SpecError
from archetype.estimate.report import cost_report
from archetype.io import atomic
from archetype.models.spec import ModelSpec
from archetype.spec.edit import differences
from archetype.surgery.layers import origins
from archetype.surgery.operation import Cuts, fill
from archetype.surgery.proof import Proof, compare
from archetype.surgery.report import REPORT, Report
from archetype.weights.packed import is_packed

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
    proves: bool = True,
) -> Transplanted:
    """Return a model of another specification with the weights of a donor. The arguments are those of the API.

    Args:
        proves: compare the models on the text, for the report.
    """
    if is_packed(donor.model):
        raise SpecError("donor", "has packed matrices, which cannot be changed", "use the unpacked model")
    cuts = Cuts(layers, {}, choices or {})
    model, ledger = fill(donor.model, spec, cuts, seed)
    proof = _prove(donor, model, text, cuts) if proves and spec.continues_text else None
    report = Report(tuple(differences(donor.spec, spec)), ledger, proof, _costs(donor.spec, spec))
    # the donor's format may not be able to express the new model
    changed = replace(donor, spec=spec, model=model, family=None, left_out={})
    return Transplanted(changed, report)


def save(transplanted: Transplanted, folder: Path, donor: str) -> None:
    """Write the new model as a run directory, with its report."""
    transplanted.model.save(folder)
    write_report(transplanted.report, folder, donor)


def write_report(report: Report, folder: Path, donor: str) -> None:
    atomic.write_json(folder / REPORT, {"donor": donor} | report.record())


def _prove(donor: LanguageModel, model: Any, text: str | None, cuts: Cuts) -> Proof:
    length = min(LONGEST, *(lm.spec.context_length for lm in (donor.model, model)))
    rows = list(rows_of(donor, text, length))
    layers = origins(donor.spec.stacks[0], model.spec.stacks[0], cuts.layers)
    return compare(donor.model, model, rows, layers)  # type: ignore[arg-type]


def rows_of(lm: LanguageModel, text: str | None, length: int) -> list[Tensor]:
    """Return rows of token ids, (1, T): of a text, of this Python's library, or random ones without a tokenizer."""
    if lm.tokenizer is None:
        if text is not None:
            raise DataError("text", "the donor has no tokenizer", "leave the text out; random tokens are compared then")
        generator = torch.Generator().manual_seed(0)
        return [torch.randint(lm.spec.input_vocab_size, (1, length), generator=generator) for _ in range(ROWS)]
    # a token has at least a byte in nearly all texts; the start of the library's text is that of its first modules
    text = library_text()[: 16 * ROWS * length] if text is None else text
    ids = lm.tokenizer.encode(text)[: ROWS * length]
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
