"""Change the architecture of a loaded model, and compare it with its donor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from archetype.api.language_model import LanguageModel
from archetype.convert.source import Source, open_spec
from archetype.data.library_text import library_text
from archetype.errors import DataError, SpecError, enumeration
from archetype.estimate.report import cost_report
from archetype.io import atomic
from archetype.models.spec import ModelSpec
from archetype.nn.layouts import NEW
from archetype.nn.ledger import Ledger
from archetype.nn.transfer import Cuts, Vocabulary
from archetype.spec.edit import differences
from archetype.surgery.layers import are_free, assigned, kept_layers, origins
from archetype.surgery.measure import WAYS, influences, moments_of, ranks_of
from archetype.surgery.operation import check_kinds, fill
from archetype.surgery.proof import Proof, compare, loss_of
from archetype.surgery.report import REPORT, Exchange, Report, record_from
from archetype.surgery.vocabulary import exchange
from archetype.tokenizers import Tokenizer
from archetype.weights.finite import check_numbers
from archetype.weights.packed import is_packed

ROWS, LONGEST = 4, 512  # rows of tokens that the models are compared on, and their length at most


class Transplanted(NamedTuple):
    """The new model, and the report on its donor's weights."""

    model: LanguageModel
    report: Report


def transplant(
    donor: LanguageModel,
    spec: ModelSpec,
    text: str | None = None,
    layers: Sequence[int] | str | None = None,
    choices: Mapping[str, str] | None = None,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    changes: Sequence[str] = (),
    proves: bool = True,
) -> Transplanted:
    """Return a model of another specification with the weights of a donor. The arguments are those of the API.

    Args:
        changes: assignments that have made the specification of the donor's, and are made to the layers that are kept.
        proves: compare the models on the text, for the report.
    """
    if is_packed(donor.model):
        raise SpecError("donor", "has packed matrices, which cannot be changed", "use the unpacked model")
    check_kinds(donor.spec, spec)
    check_numbers(donor.model, "donor")
    is_compared = spec.continues_text and donor.spec.continues_text
    if text is not None and not is_compared:
        cause = f"a model of kind {donor.spec.kind} that continues no text is not compared on one"
        raise DataError("text", cause, "leave the text out")
    rows = rows_of(donor, spec, text, tokenizer) if is_compared else []
    cuts = cuts_of(donor, spec, rows, layers, choices or {}, seed, tokenizer, changes)
    spec = assigned(donor.spec, changes, cuts.layers) if changes else spec
    model, ledger = fill(donor.model, spec, cuts)
    changed = replace(donor, spec=spec, model=model, family=None, left_out={})  # the format may not express the model
    proof, exchanged = None, None
    if cuts.vocabulary is not None and tokenizer is not None:
        changed = replace(changed, tokenizer=tokenizer, special={}, generation={}, template=None)
        exchanged = _exchanged(donor, changed, rows, cuts.vocabulary)
    elif is_compared and proves:
        proof = compare(donor.model, model, rows, origins_of(donor.spec, spec, cuts))  # type: ignore[arg-type]
    return Transplanted(changed, report_of(donor.spec, spec, cuts, ledger, proof, exchanged))


def origins_of(old: ModelSpec, new: ModelSpec, cuts: Cuts) -> list[int]:
    """Return the donor's layer of each new layer."""
    return origins(old.stacks[0], new.stacks[0], cuts.layers)


def report_of(
    old: ModelSpec,
    new: ModelSpec,
    cuts: Cuts,
    ledger: Ledger,
    proof: Proof | None = None,
    exchanged: Exchange | None = None,
) -> Report:
    """Return the report of a transplant, with the costs of both models."""
    layers = tuple(origins_of(old, new, cuts))
    return Report(tuple(differences(old, new)), ledger, proof, _costs(old, new), exchanged, layers)


def changed_spec(
    donor: LanguageModel, changes: Sequence[str], spec: Source | None, tokenizer: Tokenizer | None
) -> tuple[ModelSpec, Sequence[str]]:
    """Return the specification of the new model, and the assignments that make it of the donor's.

    It has the vocabulary of its tokenizer unless the changes say more.

    Raises:
        SpecError: nothing is changed, or a change is invalid.
    """
    if spec is not None:
        if changes:
            raise SpecError("spec", "is a whole specification, and cannot be combined with changes", "remove one")
        return open_spec(spec), ()
    vocabulary = [] if tokenizer is None else [f"vocab_size={tokenizer.vocab_size}"]
    if not changes and tokenizer is None:
        remedy = "add changes such as layers[*].mixer.num_kv_heads=2, or --spec"
        raise SpecError("transplant", "nothing is changed", remedy)
    assignments = [*vocabulary, *changes]
    return assigned(donor.spec, assignments), assignments


def cuts_of(
    donor: LanguageModel,
    spec: ModelSpec,
    rows: Sequence[Tensor],
    layers: Sequence[int] | str | None,
    choices: Mapping[str, str],
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    changes: Sequence[str] = (),
) -> Cuts:
    """Return the new model's cuts, ranked on rows of tokens where needed."""
    stacks = donor.spec.stacks[0], spec.stacks[0]
    if layers is not None and len(spec.stacks) > 1:
        cause = f"the model has {len(spec.stacks)} stacks of layers, and this names those of one"
        raise SpecError("--layers", cause, "leave it out; the layers of each stack are spread evenly")
    if isinstance(layers, str):
        is_free = are_free(donor.spec, changes)
        layers = kept_layers(layers, *stacks, lambda: influences(donor.model, _measured(rows)), seed, is_free)
    way = choices.get("cut", "activation" if rows else "magnitude")
    if way not in WAYS or (way == "activation" and not rows):
        known = [known for known in WAYS if rows or known != "activation"]
        raise SpecError("--with cut", f"{way!r:.40} is not a method for this model", f"use {enumeration(known, 'or')}")
    ranks, moments = ranks_of(donor.model, rows, way, seed), moments_of(donor.model, rows)
    if tokenizer is None:
        return Cuts(layers, choices, ranks, moments, seed=seed)
    if donor.tokenizer is None:
        raise DataError("--tokenizer", "the donor has no tokenizer whose tokens could be taken over", "leave it out")
    vocabulary = exchange(donor.tokenizer, tokenizer, donor.spec.input_vocab_size, spec.input_vocab_size)
    return Cuts(layers, choices, ranks, moments, vocabulary, seed)


def not_measured() -> SpecError:
    """Return the error of a model whose layers have no influence on a text."""
    return SpecError("--layers influence", "this model continues no text", "name the layers, such as 0-5")


def _measured(rows: Sequence[Tensor]) -> Sequence[Tensor]:
    if not rows:
        raise not_measured()
    return rows


def _exchanged(
    donor: LanguageModel, changed: LanguageModel, rows: Sequence[Tensor], vocabulary: Vocabulary
) -> Exchange:
    # the same text in both vocabularies
    assert donor.tokenizer is not None and changed.tokenizer is not None
    text = donor.tokenizer.decode([id for row in rows for id in row[0].tolist()])
    losses = []
    for lm, length in ((donor, rows[0].shape[1]), (changed, changed.spec.context_length)):
        assert lm.tokenizer is not None
        ids = lm.tokenizer.encode(text)
        cut = [torch.tensor([ids[start : start + length]]) for start in range(0, len(ids), length)]
        losses.append(loss_of(lm.model, cut) / len(text.encode()))  # type: ignore[arg-type]
    copied = sum(token != NEW for token in vocabulary.tokens)
    composed = len(vocabulary.pieces)
    return Exchange(copied, composed, len(vocabulary.tokens) - copied - composed, *losses)


def save(transplanted: Transplanted, folder: Path, donor: str) -> None:
    """Write the new model as a run directory, with its report."""
    with atomic.new_folder(folder) as temporary:
        transplanted.model.write(temporary)
        atomic.write_json(temporary / REPORT, record_from(donor, transplanted.report))


def rows_of(lm: LanguageModel, spec: ModelSpec, text: str | None, tokenizer: Tokenizer | None = None) -> list[Tensor]:
    """Return rows of token ids, (1, T): of a text, of this Python's library, or random ones without a tokenizer.

    They fit into both models. Tokens that the new model lacks are left out, unless it has another tokenizer.
    """
    length = min(LONGEST, *(getattr(each, "context_length", LONGEST) for each in (lm.spec, spec)))
    if length < 2:
        raise SpecError("context_length", "leaves no token to predict", "use at least 2")
    vocabulary = min(each.input_vocab_size for each in ((lm.spec,) if tokenizer else (lm.spec, spec)))
    if lm.tokenizer is None:
        if text is not None:
            raise DataError("text", "the donor has no tokenizer", "leave the text out; random tokens are compared then")
        generator = torch.Generator().manual_seed(0)
        return [torch.randint(vocabulary, (1, length), generator=generator) for _ in range(ROWS)]
    # a token has at least a byte in nearly all texts; the start of the library's text is that of its first modules
    text = library_text(16 * ROWS * length) if text is None else text
    ids = [id for id in lm.tokenizer.encode(text) if id < vocabulary][: ROWS * length]
    if len(ids) < 2:
        raise DataError(
            "text", "has fewer than two tokens that both models have, and nothing to predict", "use another"
        )
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
