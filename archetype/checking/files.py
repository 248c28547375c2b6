"""Checks that models are written and read without loss."""

import tempfile
from pathlib import Path

import torch

from archetype.checking.passes import EXACT
from archetype.checking.subject import Inapplicable, Subject, Violated, vectors
from archetype.convert.hf_folder import compare, write_model
from archetype.errors import MAX_LINE, ArchetypeError
from archetype.families.registry import family_for
from archetype.nn.comparison import distance
from archetype.runs.directory import Run, read_run_model, write_run_spec, write_weights


def run_keeps_bits(subject: Subject) -> None:
    """Check that a run directory returns the specification and every tensor bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        write_run_spec(run, subject.spec)
        write_weights(run, subject.model)
        again = read_run_model(run).to(subject.device)
        if again.spec != subject.spec:
            raise Violated("spec.yaml reads back as a different specification")
        tensors = again.state_dict()
        for name, tensor in subject.model.state_dict().items():
            if name not in tensors or not torch.equal(tensor, tensors[name]):
                raise Violated(f"{name} reads back with different values")
        # in float64: the alignment of tensors in memory may change the order of sums, and models may amplify rounding
        ours, read = (vectors(model(**subject.inputs())) for model in (subject.exact.model, again.double()))
        if distance(read, ours) > EXACT:
            raise Violated("the model that was read has other outputs, so something was not saved")


def export_is_honest(subject: Subject) -> None:
    """Check that a published format keeps every tensor bit for bit, or refuses the model with a one-line error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            family = family_for(subject.spec)
            write_model(subject.model, family, Path(folder))
        except ArchetypeError as error:
            if "\n" in str(error) or len(str(error)) > MAX_LINE:
                raise Violated("the error is longer than a line") from None
            raise Inapplicable("no published format can express it") from None
        compare(subject.model, family, Path(folder))
