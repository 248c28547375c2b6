"""A number by which a kernel reaches memory is looked at first: a row that is none, or a place behind a cache."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from archetype.native.attention import append, attend
from archetype.native.library import Library
from archetype.native.operations import CopyPlaces, Gather
from archetype.native.products import product, quantized_product, unpacked_rows
from archetype.native.recorder import Recorder
from archetype.native.rows import quantized_embedding
from archetype.weights.lossless import compress
from archetype.weights.quantized import QuantizedMatrix, quantize
from tests.helpers.cases import case
from tests.helpers.kernels import INSTRUCTIONS, kernels

E, N, K, S = 3, 32, 64, 6  # matrices, rows, features, places
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(E * N, K, generator=GENERATOR)
STACK = QuantizedMatrix(*quantize(WEIGHT, 8), N)
TRAINED = 0.02 * torch.randn(E, N, 8 * K, generator=GENERATOR).to(torch.bfloat16)
LOSSLESS = compress(TRAINED)
assert LOSSLESS is not None
X = torch.randn(3, K, generator=GENERATOR)
QUERIES, CACHE = torch.randn(3, 4, 1, K, generator=GENERATOR), torch.randn(3, 2, S, K, generator=GENERATOR)
MASK = torch.zeros(1, 4, 1, S)
Emit = Callable[[Recorder, Tensor], Tensor | None]


def embedding(recorder: Recorder, ids: Tensor) -> Tensor:
    with recorder:
        return torch.nn.functional.embedding(ids, WEIGHT)


def gather(recorder: Recorder, ids: Tensor) -> Tensor:
    y = torch.empty(ids.shape)
    recorder.emit(Gather(y=y, x=X, index=ids, rows=3, columns=1, features=K))
    return y


def embedded(recorder: Recorder, ids: Tensor) -> Tensor | None:
    return quantized_embedding(recorder, ids, STACK.quants, STACK.scales, E * N, K, 8, torch.float32)


def few_bits(recorder: Recorder, ids: Tensor) -> Tensor | None:
    return quantized_product(recorder, X, STACK.quants, STACK.scales, N, E, 8, None, ids)


def unpacked(recorder: Recorder, ids: Tensor) -> Tensor | None:
    return unpacked_rows(recorder, LOSSLESS, torch.float32, ids)


def lossless_expert(recorder: Recorder, ids: Tensor) -> Tensor | None:
    return product(recorder, torch.randn(3, 8 * K).bfloat16(), LOSSLESS, None, ids)


def appended(recorder: Recorder, positions: Tensor) -> Tensor | None:
    return append(recorder, torch.randn(3, 2, 1, K), CACHE.clone(), positions)


def copied(indices: str) -> Emit:
    """A copy between rows, where one of the three lists of numbers is given."""

    def emit(recorder: Recorder, ids: Tensor) -> Tensor:
        keys, values = CACHE.clone(), CACHE.clone()
        lists = {"sources": torch.tensor([2] * 3), "starts": torch.tensor([0] * 3), "ends": torch.tensor([S] * 3)}
        strides = tuple(4 * stride for stride in keys.stride()[:3])
        recorder.emit(
            CopyPlaces(
                keys=keys,
                values=values,
                **(lists | {indices: ids[:, 0]}),
                rows=3,
                heads=2,
                places=S,
                keys_strides=strides,
                values_strides=strides,
            )
        )
        return keys

    return emit


def none_of(count: int) -> tuple[int, ...]:
    return (*NEGATIVE, count, 2**40, 2**63 - 1)


NEGATIVE = (-1, -(2**63))
# what is emitted, and numbers that it may not be given
BY_INDEX: dict[str, tuple[Emit, tuple[int, ...]]] = {
    "rows": (embedding, none_of(E * N)),
    "rows of few bits": (embedded, none_of(E * N)),
    "rows without loss": (unpacked, none_of(E * N)),
    "gathered": (gather, none_of(K)),
    "experts": (lambda recorder, ids: product(recorder, X, WEIGHT.view(E, N, K), None, ids), none_of(E)),
    "experts of few bits": (few_bits, none_of(E)),
    "experts without loss": (lossless_expert, none_of(E)),
    "positions": (lambda recorder, ids: attend(recorder, QUERIES, CACHE, CACHE, 1.0, ids), none_of(S)),
    "distances": (lambda recorder, ids: attend(recorder, QUERIES, CACHE, CACHE, 1.0, ids, distances=MASK), none_of(S)),
    "positions of a ring": (lambda recorder, ids: attend(recorder, QUERIES, CACHE, CACHE, 1.0, ids, S, True), NEGATIVE),
    "places": (appended, NEGATIVE),
    "sources": (copied("sources"), none_of(3)),
    "starts": (copied("starts"), NEGATIVE),  # nothing is copied from the end on, nor to what stands before the start
    "ends": (copied("ends"), (S + 1, 2**40, 2**63 - 1)),
}


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_it_is_refused_whichever_number_of_an_operation_is_wrong(instructions: str) -> None:
    library: Library = kernels(instructions)
    for name, (emit, wrong_ones) in BY_INDEX.items():
        suitable = torch.tensor([[2]] * 3)
        ids = suitable.clone()
        recorder = Recorder(library, [ids])
        y = emit(recorder, ids)
        assert y is not None, name
        with torch.no_grad(), recorder:
            behind = y + 1
        replay, expected = recorder.finish([y, behind]), behind.clone()
        for place in (0, 1):
            for wrong in wrong_ones:
                for threads in (1, 3):
                    with case(instructions, name, place, wrong, threads):
                        behind.zero_()
                        ids.copy_(suitable)[place] = wrong
                        with pytest.raises(IndexError, match=r"index -?\d+ is out of range for size \d+"):
                            replay(threads)
                        assert not behind.any()  # nothing is computed after it
        ids.copy_(suitable)
        replay(2)
        assert torch.equal(behind, expected), name
