"""Verification of an inferred family: a small model is compared with transformers.

Names and shapes do not show how a fused projection is split or which features rotate together. When weights of a
model type that the tests do not verify are first read, transformers builds a small model of the same config.json with
random weights, Archetype reads it, and the logits are compared. If they differ, other layouts are tried.
"""

import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archetype.convert import parity
from archetype.convert.hf_folder import open_tensors, read_model
from archetype.convert.infer.proofs import (
    Proof,
    find_proof,
    keep_proof,
    split_overrides,
    transformers_version,
)
from archetype.convert.infer.small import LATENT, make_small, with_sizes
from archetype.convert.reference import load_reference, quiet_reference, read_configuration, reference_class
from archetype.convert.source import read_hf_spec
from archetype.errors import ArchetypeError, CheckpointError, DataError, UnknownFamily
from archetype.families.registry import family_of
from archetype.io.low_bit.settings import without_settings
from archetype.io.yaml import read_mapping
from archetype.nn.comparison import randomize

EXACT = parity.TOLERANCES["float32"]  # relative to the largest logit
# Changes of keys, tried in turn until transformers can build a small model.
PADDED: dict[str, Any] = {"pad_token_id": 0}
FALLBACKS: tuple[dict[str, Any], ...] = ({}, PADDED, LATENT, LATENT | PADDED, {"intermediate_size": None})
LARGEST = 40_000_000  # parameters of a small model
TRIALS = 300  # layouts tried; not a time limit, so that a busy machine has the same result


class Unprovable(Exception):
    """No small model can be compared. The message states the reason."""


def check_proved(folder: Path, overrides: Sequence[str] = (), accept: bool = False, allow_pickle: bool = False) -> None:
    """Verify the assumptions made while reading a folder, unless they are verified already.

    Registered families and model types that the tests verify pass without a comparison.

    Args:
        overrides: same as for `read_model`.
        accept: whether to accept assumptions that cannot be verified.
        allow_pickle: same as for `read_model`.

    Raises:
        CheckpointError: the small model differs, or the assumptions cannot be verified and `accept` is false.
    """
    file = folder / "config.json"
    values, (settings, changes) = without_settings(read_mapping(file)), split_overrides(overrides)
    if family_of(values, str(file)) is not None:
        return
    proof = find_proof(values, settings)
    if proof is not None and proof.asked is None and not proof.fault:
        return
    shapes = open_tensors(folder, allow_pickle).shapes()
    # this may already refuse the folder
    family, _ = read_hf_spec(folder, lambda: shapes, warn=False, settings=settings)
    assert family.reading is not None
    field = f"{file}: model_type"
    try:
        if proof is None or (proof.fault and changes):
            proof = prove(values, settings, changes)
        if not proof.covers(family.reading.alternatives):
            missing = sorted(set(family.reading.alternatives) - set(proof.asked or ()))
            raise Unprovable(f"a small model of {proof.by} does not depend on {', '.join(missing)}")
    except Unprovable as reason:
        if accept:
            return
        warnings.warn(UnknownFamily(f"{folder}: {family.reading.summary(family.name)}"), stacklevel=2)
        remedy = "check the assumptions, correct them with --set NAME=VALUE, and import with --accept-unproved"
        raise CheckpointError(field, f"cannot verify how {family.name} was imported: {reason}", remedy) from None
    if proof.fault:
        options = ", ".join(f"{name}={str(value).lower()}" for name, value in settings.items())
        remedy = f"remove --set {options}" if options else "no known layout agrees: see docs/adding_a_family.md"
        raise CheckpointError(field, f"{family.name}, as imported, does not match {proof.by}: {proof.fault}", remedy)


@torch.inference_mode()
def prove(values: dict[str, Any], settings: Mapping[str, Any], changes: Sequence[str] = ()) -> Proof:
    """Compare a small model with transformers, find the layouts for which they agree, and cache the result.

    Args:
        settings: layouts set by the user, which are not varied.
        changes: assignments to the specification, tried if the small model differs without them.

    Raises:
        Unprovable: transformers is not installed, lacks the class, or cannot build a small model.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = SmallModel(Path(folder), values)
        proof = settle_by(small, settings)
        keep_proof(values, settings, proof)
        if proof.fault and changes and small.agrees([*_assignments(settings), *changes]):
            return replace(proof, fault="")  # not cached, since it depends on the user's changes
        return proof


@torch.inference_mode()
def settle_by(small: "SmallModel", settings: Mapping[str, Any]) -> Proof:
    """Find the layouts for which a small model agrees with transformers. `settings` are the same as for `prove`."""
    by, assignments = f"transformers {transformers_version()}", _assignments(settings)
    difference, alternatives = small.difference(assignments), small.alternatives(settings)
    asked = (*alternatives, *settings)
    if difference < EXACT:
        return Proof(by, {}, difference, asked=asked)
    # the reading differs: try the other layouts that names and shapes allow
    for taken in _other_layouts(alternatives):
        words = [f"{name}={value}" for name, value in taken.items()]
        if small.agrees([*assignments, *words]):
            return Proof(by, split_overrides(words)[0], small.difference([*assignments, *words]), asked=asked)
    # no layout agrees; name the first module that differs
    result = parity.compare(small.folder, overrides=assignments)
    first = result.first
    where, size = (f"{first.module} ({first.reference})", first.difference) if first else ("logits", result.difference)
    return Proof(by, {}, result.difference, f"{where} differs by {size:.2g} of the largest value", asked)


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]


def _other_layouts(alternatives: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    # changes of one layout, then of two at once
    candidates = (
        dict(zip(names, values, strict=True))
        for count in (1, 2)
        for names in combinations(alternatives, count)
        for values in product(*(alternatives[name] for name in names))
    )
    return islice(candidates, TRIALS)


class SmallModel:
    """Small model built from a shrunken config.json, with its reference output from transformers.

    Args:
        folder: empty folder for the model.
        values: config.json to shrink.

    Raises:
        Unprovable: the model cannot be built.
    """

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.folder, reasons = folder, []
        # classes refuse some combinations of small sizes; the reason of the first, plainest attempt is reported
        for sizes in FALLBACKS:
            try:
                small = make_small(values) | sizes
                model = _write(folder, small)
                family, ours = read_model(folder, torch.float32)
                self.inputs = parity.make_inputs(ours, folder, None)
                self.reference: Tensor = parity.run_reference(family, model, self.inputs)
                return
            except DataError as error:  # transformers lacks the class, or cannot read its own file
                lacking = f"transformers {transformers_version()} has no class for it"
                lacks_class = error.place.endswith("architectures")
                raise Unprovable(lacking if lacks_class else self._without_folder(error)) from None
            except ArchetypeError as error:
                reasons.append(self._without_folder(error))
            except Exception as error:  # a class may raise anything for sizes it was not written for
                reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        raise Unprovable(reasons[0])

    def _without_folder(self, error: ArchetypeError) -> str:
        # the temporary folder no longer exists when the user reads the message
        return re.sub(rf"^{re.escape(str(self.folder))}(/|: )", "", f"{error.place}: {error.cause}")

    def alternatives(self, settings: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """Return the alternatives for each assumed layout."""
        family, _ = read_hf_spec(self.folder, warn=False, settings=settings)
        assert family.reading is not None
        return family.reading.alternatives

    def difference(self, overrides: Sequence[str]) -> float:
        """Return the largest difference of logits relative to the largest magnitude.

        Raises:
            Unprovable: the model cannot be read.
        """
        try:
            _, model = read_model(self.folder, torch.float32, overrides=overrides)
            difference = parity.distance(parity.run(model, self.inputs), self.reference)
        except ArchetypeError as error:
            raise Unprovable(self._without_folder(error)) from None
        return float("inf") if difference is None else difference

    def agrees(self, overrides: Sequence[str]) -> bool:
        """Return whether the model can be read with these overrides and agrees with transformers."""
        try:
            return self.difference(overrides) < EXACT
        except Unprovable:
            return False


def _num_parameters(config: Any, make: Callable[[Any], Any]) -> int:
    # counted without allocating: sizes that are not in the file may make the "small" model huge
    with torch.device("meta"):
        count: int = make(config).num_parameters()
    return count


def _write(folder: Path, values: dict[str, Any]) -> nn.Module:
    # transformers writes a model with random weights, and loads it again
    model_class, file = reference_class(values, "config.json"), folder / "config.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    with quiet_reference(), torch.random.fork_rng(devices=[]):
        config, make = read_configuration(model_class, folder)
        if _num_parameters(config, make) > LARGEST:  # because of sizes that are not in the file
            file.write_text(json.dumps(values := with_sizes(values, config)), encoding="utf-8")
            config, make = read_configuration(model_class, folder)
        if (count := _num_parameters(config, make)) > LARGEST:
            raise ValueError(f"{count:,} parameters, and no known key makes the model smaller")
        model: Any = make(config)
        # parameters that are computed at construction are not trained and must keep their values
        parameters = model.named_parameters()
        computed = {name: tensor.detach().clone() for name, tensor in parameters if not tensor.requires_grad}
        randomize(model)
        model.load_state_dict(computed, strict=False)
        model.save_pretrained(folder)
    file.write_text(json.dumps(values), encoding="utf-8")  # with the original keys
    reference = load_reference(folder, torch.float32)
    drawn, loaded = model.state_dict(), reference.state_dict()
    if any(name in drawn and not torch.equal(drawn[name], loaded[name]) for name, _ in reference.named_buffers()):
        with quiet_reference():  # loading overwrites some numbers of the file (ZAYA1), which then has to say so
            reference.save_pretrained(folder)  # type: ignore[operator]
        file.write_text(json.dumps(values), encoding="utf-8")
    return reference
