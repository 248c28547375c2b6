"""Checks of the decoding state: outputs are the same without it, in chunks of any size, and in any batch."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from archetype.checking.passes import EXACT
from archetype.checking.subject import Inapplicable, Subject, Violated
from archetype.nn.comparison import distance
from archetype.nn.state import State


def state_changes_nothing(subject: Subject) -> None:
    """Check that a sequence gives the same outputs with a state as without."""
    _check_writes(subject)
    tokens = subject.tokens(2, subject.length)
    with_state, state = subject.step(tokens, subject.new_state(range(2), subject.length))
    if (difference := distance(with_state, subject.read(tokens))) > EXACT:
        raise Violated(f"with a state the outputs differ by {difference:.0e}", difference)
    if state.lengths.tolist() != 2 * [subject.length]:
        raise Violated(f"after {subject.length} tokens the state has read {state.lengths.tolist()}")


def chunks_are_whole(subject: Subject) -> None:
    """Check that a sequence read in chunks gives the same outputs as in one pass."""
    _check_writes(subject)
    tokens, length = subject.tokens(2, subject.length), subject.length
    whole = subject.read(tokens)
    for cuts in ([5, 6, 13, 14, 15], list(range(1, length))):
        state, start = subject.new_state(range(2), length), 0
        for start, end in pairwise([0, *(cut for cut in cuts if cut < length), length]):
            piece, state = subject.step(tokens[:, start:end], state.narrow(end))
            if (difference := distance(piece, whole[:, start:end])) > EXACT:
                raise Violated(f"outputs {start} to {end - 1}, read in a chunk, differ by {difference:.0e}", difference)


def padding_leaves_states(subject: Subject) -> None:
    """Check that sequences that end or pause while others continue have the same state as without the others."""
    _check_writes(subject)
    length = subject.length - 1
    sizes = [length, 4]
    sequences = [subject.tokens(1, size, size)[0] for size in sizes]
    whole = [subject.read(sequence[None], rows=[index])[0] for index, sequence in enumerate(sequences)]
    state, read = subject.new_state(range(2), subject.length), [0, 0]
    for counts in ([length - 4, 2], [0, 2], [4, 0]):  # tokens of each sequence per pass; 0: only padding
        parts = zip(sequences, read, counts, strict=True)
        pieces = [sequence[start : start + count] for sequence, start, count in parts]
        padded = torch.stack([pad(piece, (0, max(counts) - len(piece)), value=7) for piece in pieces])
        results, state = subject.step(padded, state, counts)
        for index, count in enumerate(counts):
            expected = whole[index][read[index] : read[index] + count]
            if count and (difference := distance(results[index, :count], expected)) > EXACT:
                raise Violated(
                    f"after {read[index]} tokens, next to a longer sequence, outputs differ by {difference:.0e}",
                    difference,
                )
        read = [before + count for before, count in zip(read, counts, strict=True)]
    if state.lengths.tolist() != sizes:
        raise Violated(f"after {sizes} tokens the state has read {state.lengths.tolist()}")
    _check_next_token(subject, state, sequences, [0, 1])


def rows_join_and_leave(subject: Subject) -> None:
    """Check that rows that stay, are copied or are replaced continue as if they were alone in the batch."""
    _check_writes(subject)
    length = subject.length - 2
    sequences = [subject.tokens(1, size, size)[0] for size in (length, length - 3, 2)]
    state = _state_of(subject, sequences, [0, 1, 2], subject.length)
    order = [2, 0, 2]  # another order, with a copy
    _check_next_token(subject, state.select(subject.indices(order)), [sequences[index] for index in order], order)
    newcomers = [subject.tokens(1, size, 50 + size)[0] for size in (length - 1, 1)]
    state.insert(subject.indices([2, 0]), _state_of(subject, newcomers, [3, 4], length))
    _check_next_token(subject, state, [newcomers[1], sequences[1], newcomers[0]], [4, 1, 3])


def _check_writes(subject: Subject) -> None:
    if not subject.writes:
        raise Inapplicable("reads whole inputs, without a state")
    if subject.spec.follows_length:
        tokens, half = subject.tokens(1, subject.length), subject.length // 2
        if distance(subject.read(tokens)[:, :half], subject.read(tokens[:, :half])) > EXACT:
            raise Inapplicable("rotary positions depend on the length, so sequences must be read in one pass")


def _state_of(subject: Subject, sequences: list[Tensor], names: list[int], capacity: int) -> State:
    lengths = [len(sequence) for sequence in sequences]
    padded = torch.stack([pad(sequence, (0, max(lengths) - len(sequence))) for sequence in sequences])
    return subject.step(padded, subject.new_state(names, capacity), lengths)[1]


def _check_next_token(subject: Subject, state: State, sequences: list[Tensor], names: list[int]) -> None:
    # one more token per slot must give the same outputs as the whole sequence without a state
    newest = subject.tokens(len(sequences), 1, 7)
    results, _ = subject.step(newest, state)
    for index, sequence in enumerate(sequences):
        expected = subject.read(torch.cat((sequence, newest[index]))[None], rows=names[index : index + 1])
        if (difference := distance(results[index, -1], expected[0, -1])) > EXACT:
            place = f"sequence {index} of {len(sequences)}, after {len(sequence)} tokens"
            raise Violated(f"{place}, continues differently than alone, by {difference:.0e}", difference)
