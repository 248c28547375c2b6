"""Checks of forward passes: finite, causal, independent of the batch, and equal when compiled."""

import warnings
from functools import partial

import torch
from torch import Tensor

from archetype.checking.subject import CPU, Inapplicable, Subject, Violated, vectors
from archetype.errors import SpecError
from archetype.nn.comparison import distance
from archetype.training.block_execution import blocks_of, compile_blocks

# Differences relative to the largest magnitude.
EXACT = 1e-5  # rounding in float32
WRONG = 1e-3  # exceeded by every mistake
ROUNDING = 1e-6  # between devices in float64, where rotations are computed in float32
BITS = 1e-12  # above rounding in float64, below rounding in float32
COMPILED_LENGTH = 4  # tokens; short, since loops over positions are unrolled


def is_finite(subject: Subject) -> None:
    """Check that outputs are finite."""
    if not vectors(subject.model(**subject.inputs())).isfinite().all():
        raise Violated("the outputs contain Inf or NaN")


def device_changes_nothing(subject: Subject) -> None:
    """Check that another device computes the same float64 outputs as the CPU, up to rounding in rotations."""
    if subject.device == CPU:
        raise Inapplicable("it runs on the CPU")
    inputs = {name: in_float64(value) for name, value in subject.inputs().items()}
    there = vectors(subject.exact.model(**inputs)).to(CPU)
    model = Subject(subject.spec).exact.model
    here = vectors(model(**{name: value.to(CPU) for name, value in inputs.items()}))
    if (difference := distance(there, here)) > ROUNDING:
        raise Violated(f"{subject.device.type} differs by {difference:.0e}")


def in_float64(value: Tensor) -> Tensor:
    """Convert images to float64, and return tokens unchanged."""
    return value.double() if value.is_floating_point() else value


def future_changes_nothing(subject: Subject) -> None:
    """Check that later tokens do not change earlier outputs, and that each token changes the output at its position."""
    if not subject.writes:
        raise Inapplicable("positions of an encoder may attend to all others")
    tokens = subject.tokens(2, subject.length)
    before, vocab_size = subject.read(tokens), subject.vocab_size
    for seen in range(1, subject.length):
        changed = torch.cat((tokens[:, :seen], (tokens[:, seen:] + 1) % vocab_size), 1)
        after = subject.read(changed)
        if not torch.equal(before[:, :seen], after[:, :seen]):
            # Products of other shapes (as in experts) round differently. In float64, such a difference nearly vanishes,
            # and a leak does not.
            exact = [subject.exact.read(some)[:, :seen] for some in (tokens, changed)]
            if (leak := distance(*exact)) > BITS:
                position = int((exact[0] - exact[1]).abs().amax((0, 2)).argmax())
                raise Violated(f"tokens from position {seen} on change position {position} by {leak:.0e}")
        if distance(before[:, seen], after[:, seen]) < WRONG:
            raise Violated(f"the token at position {seen} does not change the output there")


def batch_is_single(subject: Subject) -> None:
    """Check that a sequence has the same outputs in a batch as by itself."""
    inputs = subject.inputs()
    together = vectors(subject.model(**inputs))
    for index in range(len(together)):
        alone = vectors(subject.model(**{name: value[index : index + 1] for name, value in inputs.items()}))
        if (difference := distance(together[index], alone[0])) > EXACT:
            place = f"sequence {index} of {len(together)}"
            raise Violated(f"{place} differs from the same alone by {difference:.0e}", difference)


def padding_is_nothing(subject: Subject) -> None:
    """Check that a padded batch gives the same outputs as each sequence alone, whatever the padding tokens are."""
    if subject.reads_images:
        raise Inapplicable("images have a fixed size")
    length = subject.length
    lengths = [length, 1, length - 3, length // 2]
    sequences = [subject.tokens(1, size, size) for size in lengths]
    for filler in (7, 8):
        pad = partial(torch.nn.functional.pad, value=filler)
        padded = torch.cat([pad(sequence, (0, length - sequence.shape[1])) for sequence in sequences])
        together = subject.read(padded, lengths)
        for index, (sequence, size) in enumerate(zip(sequences, lengths, strict=True)):
            alone = subject.read(sequence, rows=[index])[0]
            if not together[index, :size].isfinite().all() or distance(together[index, :size], alone) > EXACT:
                difference = distance(together[index, :size], alone)
                raise Violated(
                    f"a sequence of {size} tokens padded to {length} differs from the same alone by {difference:.0e}",
                    difference,
                )


def compiled_is_eager(subject: Subject) -> None:
    """Check that blocks compiled by torch.compile compute the same outputs as eager blocks."""
    model = subject.built().requires_grad_(False)
    if not blocks_of(model):
        raise Inapplicable("has no blocks")
    inputs = subject.inputs(rows=1)
    if not subject.reads_images:
        inputs = {name: value[:, :COMPILED_LENGTH] for name, value in inputs.items()}
    eager = vectors(model(**inputs))
    with warnings.catch_warnings(action="ignore"):  # from torch's compiler
        torch.compiler.reset()  # torch limits the number of compiled programs: drop those of earlier models
        try:
            compile_blocks(model)
        except SpecError as error:
            raise Inapplicable(error.cause) from None
        compiled = vectors(model(**inputs))
    if (difference := distance(compiled, eager)) > EXACT:
        raise Violated(f"outputs of compiled blocks differ by {difference:.0e}")
